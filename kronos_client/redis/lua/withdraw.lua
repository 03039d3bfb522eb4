-- Removes the message of a job that has its outcome from the list where it waits.
-- Returns 1 if it was removed, 0 if it was not found: then the worker that takes it drops it.
--
-- The record names the list, and the number of messages that came before this one. Of these, as many as were
-- taken off the list are gone. Messages that were sent at the same moment, or removed from behind this one, make
-- its place wrong by their number, always in the same direction.
local record, taken = KEYS[1], KEYS[2]
local mark = ARGV[1] -- only this job's message holds it, near its end
local end_bytes, max_messages, max_bytes = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local chunk = 16

local list, place = unpack(redis.call('HMGET', record, 'list', 'place'))
if not list or redis.call('HEXISTS', record, 'ended_at') == 0 then
    return 0
end
local first = math.max(0, place - (redis.call('HGET', taken, list) or 0)) -- counted from the end that is served
local num_bytes = 0
for offset = first, first + max_messages - 1, chunk do
    local messages = redis.call('LRANGE', list, -offset - chunk, -offset - 1)
    for position = #messages, 1, -1 do
        local message = messages[position]
        num_bytes = num_bytes + #message
        if string.find(string.sub(message, -end_bytes), mark, 1, true) then
            redis.call('LSET', list, position - #messages - offset - 1, 'withdrawn')
            redis.call('LREM', list, -1, 'withdrawn')
            redis.call('HINCRBY', taken, list, 1)
            return 1
        end
    end
    if #messages < chunk or num_bytes > max_bytes then
        return 0
    end
end
return 0
