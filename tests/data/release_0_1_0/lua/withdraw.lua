-- Removes the message of a job that has its outcome from the list where it waits.
-- Returns 1 if it was removed, 0 if it was not found: then the worker that takes it drops it.
--
-- The job's record names the list and its place there: the number of messages that were sent to it before. So
-- places ascend from the end of the list that is served, but for messages that were sent at the same moment.
local record, taken = KEYS[1], KEYS[2]
local record_prefix, job_id = ARGV[1], ARGV[2]
local end_bytes, max_steps = tonumber(ARGV[3]), tonumber(ARGV[4])

local list, place, ended_at = unpack(redis.call('HMGET', record, 'list', 'place', 'ended_at'))
place = tonumber(place)
if not place or not ended_at then
    return 0
end

-- The job of a message, counted from the end that is served: kombu writes its id near the message's end.
local function job_at(offset)
    local message = redis.call('LINDEX', list, -offset - 1) or ''
    local quoted = string.match(string.sub(message, -end_bytes), '"correlation_id": (".-[^\\]")')
    local is_json, ids = pcall(cjson.decode, '[' .. (quoted or '') .. ']')
    return is_json and ids[1]
end

local function place_at(offset)
    local known = redis.pcall('HMGET', record_prefix .. tostring(job_at(offset)), 'list', 'place')
    return known[1] == list and tonumber(known[2])
end

local function remove_at(offset)
    if offset < 0 or job_at(offset) ~= job_id then
        return false
    end
    redis.call('LSET', list, -offset - 1, 'withdrawn')
    redis.call('LREM', list, -1, 'withdrawn')
    redis.call('HINCRBY', taken, list, 1)
    return true
end

local low, high = 0, redis.call('LLEN', list)
while low < high do
    local middle = math.floor((low + high) / 2)
    local known = place_at(middle)
    local probe = middle
    while not known and probe > low and middle - probe < max_steps do -- another client's message
        probe = probe - 1
        known = place_at(probe)
    end
    if known and known >= place then
        high = probe
    else
        low = middle + 1
    end
end
for step = 0, max_steps do
    if remove_at(low + step) or remove_at(low - step - 1) then
        return 1
    end
end
return 0
