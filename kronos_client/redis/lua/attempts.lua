-- Adds a line to the record's field 'attempts', which has the last attempts that ended without an outcome:
-- when it began, when it ended, its worker, and how it ended.
local max_attempts = 8
local function note_attempt(record, ended_at, how)
    local begun_at, worker, attempts = unpack(redis.call('HMGET', record, 'begun_at', 'worker', 'attempts'))
    if begun_at then
        local lines = string.format('%s%s %s %s %s\n', attempts or '', begun_at, ended_at, worker, how)
        local _, num_lines = string.gsub(lines, '\n', '')
        if num_lines > max_attempts then
            lines = string.gsub(lines, '^[^\n]*\n', '', 1)
        end
        redis.call('HSET', record, 'attempts', lines)
        redis.call('HDEL', record, 'begun_at')
    end
end
