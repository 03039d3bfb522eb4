-- Takes the next message of the first list that has one, and notes it as taken. Messages whose delay has passed come
-- first in their list.
-- Returns the list, the lists that have messages still, the message's length, and the message, or only its two ends if
-- it is too large; 'full' if Redis is full and this worker holds messages already, so that what is held ends before
-- more begins; false if there is no message. The same tag gives the same message, because a command may be sent twice.
--
-- A hash holds each message under its delivery's tag, after the list's key and a newline. A sorted set holds
-- the moment of its last renewal, a second hash its timeout and the job's id, and a third the number of messages
-- taken off each list.
-- include: now
-- include: job_of
-- include: put_back
-- include: may_write
local unacked, index, claims, taken = KEYS[1], KEYS[2], KEYS[3], KEYS[4] -- then lists, in order of service
local tag, timeout_s = ARGV[1], tonumber(ARGV[2])
local max_bytes, end_bytes = tonumber(ARGV[3]), tonumber(ARGV[4])
local holds_others = ARGV[5] ~= '' -- then for each list: seconds that a job must have waited on it
local max_due = 100 -- of one list, in one call

local function min_age_s(position)
    return tonumber(ARGV[position + 1] or 0)
end

-- The next message of a list that may be taken. Before those of second lists stands the moment at which they came
-- there; one without it came back from a worker, and has waited long enough.
local function next_of(position)
    local message = redis.call('LINDEX', KEYS[position], -1)
    local is_second = string.find(KEYS[position], 'kronos:large:', 1, true) == 1
    local moment = message and is_second and string.match(string.sub(message, 1, 32), '^(%d+%.%d+)\n')
    if not moment then
        return message
    end
    return now >= moment + min_age_s(position) and string.sub(message, #moment + 2)
end

-- A write that needs room, and changes nothing: this list never exists.
local room = redis.pcall('LPUSHX', unacked .. '_room', '')
local is_full = type(room) == 'table' and string.find(room.err or '', 'OOM', 1, true)
if is_full and holds_others then
    return 'full'
end
check_may_write(unacked, index, claims)
local source, message
local held = redis.call('HGET', unacked, tag)
if held then
    local newline = string.find(held, '\n', 1, true)
    source, message = string.sub(held, 1, newline - 1), string.sub(held, newline + 1)
else
    for position = 5, #KEYS do
        local delayed = 'kronos:delayed:' .. KEYS[position]
        local due = redis.call('ZRANGEBYSCORE', delayed, '-inf', now, 'LIMIT', 0, max_due)
        for place = #due, 1, -1 do
            put_back(unacked, index, claims, taken, due[place])
            redis.call('ZREM', delayed, due[place]) -- also of a message that is no longer taken
        end
    end
    for position = 5, #KEYS do
        message = next_of(position)
        if message then
            source = KEYS[position]
            break
        end
    end
    if not message then
        return false
    end
    local job_id = job_of(message)
    local is_moved, problem = pcall(function()
        redis.call('HSET', unacked, tag, source .. '\n' .. message)
        redis.call('HSET', claims, tag, timeout_s .. ' ' .. job_id)
        redis.call('ZADD', index, now, tag)
        redis.call('RPOP', source) -- last: what Redis refuses before leaves the message on its list
    end)
    if not is_moved then -- else each take would leave another copy
        redis.call('ZREM', index, tag)
        redis.call('HDEL', claims, tag)
        redis.call('HDEL', unacked, tag)
        return redis.error_reply(type(problem) == 'table' and problem.err or tostring(problem))
    end
    pcall(redis.call, 'HINCRBY', taken, source, 1)
    pcall(note_held, job_id, tag, now, timeout_s)
end
local waiting = {}
for position = 5, #KEYS do
    if redis.call('EXISTS', KEYS[position]) == 1 and (min_age_s(position) == 0 or next_of(position)) then
        waiting[#waiting + 1] = KEYS[position]
    end
end
if #message <= max_bytes then
    return {source, waiting, #message, message}
end
return {source, waiting, #message, string.sub(message, 1, end_bytes), string.sub(message, -end_bytes)}
