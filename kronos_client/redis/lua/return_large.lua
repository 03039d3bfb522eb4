-- Moves the messages of a list's second list back to it, the oldest to the end that is served next, and those that
-- workers have taken from there, delayed ones too, when they come back. Release 0.1.0 does not read second lists.
-- Returns how many. The jobs' records then name the first list, and their places there: see withdraw.lua.
-- include: job_of
-- include: places
local list, large, taken = KEYS[1], KEYS[2], KEYS[3] -- then the hashes of taken messages
local delayed, large_delayed = 'kronos:delayed:' .. list, 'kronos:delayed:' .. large
local num_moved = 0

local function note(message, place, at)
    local job_id = job_of(message)
    if at then
        note_place(job_id, at)
    end
    if job_id ~= '' and redis.call('HEXISTS', 'kronos:job:' .. job_id, 'place') == 1 then
        redis.call('HSET', 'kronos:job:' .. job_id, 'list', list, 'place', place)
    end
end

for _ = 1, redis.call('LLEN', large) do
    local message = string.gsub(redis.call('LINDEX', large, 0), '^%d+%.%d+\n', '', 1)
    redis.call('RPUSH', list, message)
    local place = redis.call('HINCRBY', taken, list, -1)
    redis.call('LPOP', large)
    redis.call('HINCRBY', taken, large, 1)
    pcall(note, message, place, 'list ' .. list)
    num_moved = num_moved + 1
end
for position = 4, #KEYS do
    for _, tag in ipairs(redis.call('HKEYS', KEYS[position])) do
        local held = redis.call('HGET', KEYS[position], tag)
        if string.sub(held, 1, #large + 1) == large .. '\n' then
            local until_s = redis.call('ZSCORE', large_delayed, tag)
            if until_s then
                redis.call('ZADD', delayed, until_s, tag)
            end
            redis.call('HSET', KEYS[position], tag, list .. string.sub(held, #large + 1))
            pcall(note, held, redis.call('HGET', taken, list) or 0,
                until_s and string.format('delayed %.6f %s', until_s, list))
            num_moved = num_moved + 1
        end
    end
end
redis.call('DEL', large_delayed)
return num_moved
