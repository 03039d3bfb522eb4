-- Whether a job's message is not on the list where its record says that it waits: another program removed it.
-- Once more messages were taken off the list than came before it (see cancelled.lua), it has been served, or is gone.
-- Unless another program put messages in front: so the next ones are searched.
-- include: job_of
local record, list, taken = KEYS[1], KEYS[2], KEYS[3]
local known_at = ARGV[1]
local max_searched = 1000

local at, place = unpack(redis.call('HMGET', record, 'at', 'place'))
if at ~= known_at then
    return 0
end
local length = redis.call('LLEN', list)
if length > 0 and tonumber(redis.call('HGET', taken, list) or 0) <= (tonumber(place) or math.huge) then
    return 0
end
local job_id = string.sub(record, #'kronos:job:' + 1)
for position = 1, math.min(length, max_searched) do
    if job_of(redis.call('LINDEX', list, -position)) == job_id then
        return 0
    end
end
return 1
