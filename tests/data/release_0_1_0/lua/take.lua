-- Takes the next message of the first list that has one, and notes it as unacknowledged.
-- Returns the list, the message's length, and the message, or only its two ends if it is too large; false if
-- there is no message. The same tag gives the same message, because a command may be sent twice.
--
-- A hash holds each message under its delivery's tag, after the list's key and a newline. A sorted set holds
-- the moment, and another hash the number of messages taken off each list.
-- include: now
local unacked, index, taken = KEYS[1], KEYS[2], KEYS[3] -- then lists, in order of service
local tag = ARGV[1]
local max_bytes, end_bytes = tonumber(ARGV[2]), ARGV[3]

local source, message
local held = redis.call('HGET', unacked, tag)
if held then
    local newline = string.find(held, '\n', 1, true)
    source, message = string.sub(held, 1, newline - 1), string.sub(held, newline + 1)
else
    for position = 4, #KEYS do
        message = redis.call('RPOP', KEYS[position])
        if message then
            source = KEYS[position]
            break
        end
    end
    if not message then
        return false
    end
    redis.call('HSET', unacked, tag, source .. '\n' .. message)
    redis.call('ZADD', index, now, tag)
    redis.call('HINCRBY', taken, source, 1)
end
if #message <= max_bytes then
    return {source, #message, message}
end
return {source, #message, string.sub(message, 1, end_bytes), string.sub(message, -end_bytes)}
