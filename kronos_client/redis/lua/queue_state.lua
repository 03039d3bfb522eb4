-- Returns for each list: its length; how many of its messages are delayed; how many of those are due; and the seconds
-- since its oldest job was admitted, 0 if none waits or another client sent it. Cancelled jobs do not count.
-- include: now
-- include: job_of
-- include: queue_length
local max_jobs, num_lists = tonumber(ARGV[1]), tonumber(ARGV[2]) -- of each queue

local function oldest_on(list)
    local num_taken = num_taken_off(list)
    local place = num_taken
    while redis.call('ZCOUNT', 'kronos:cancelled:' .. list, place, place) > 0 do
        place = place + 1
    end
    return redis.call('LINDEX', list, num_taken - place - 1)
end

local function waited_s(message)
    local is_read, admitted_at = pcall(redis.call, 'HGET', 'kronos:job:' .. job_of(message or ''), 'admitted_at')
    return is_read and math.max(0, now - (tonumber(admitted_at or now) or now)) or 0
end

local states = {}
for first = 1, #KEYS, num_lists do
    local lists = {unpack(KEYS, first, first + num_lists - 1)}
    for position, length in ipairs(lengths_of(lists, max_jobs)) do
        local list = lists[position]
        local delayed = 'kronos:delayed:' .. list
        states[#states + 1] = {
            length,
            redis.call('ZCARD', delayed),
            redis.call('ZCOUNT', delayed, '-inf', now),
            string.format('%.3f', waited_s(oldest_on(list))),
        }
    end
end
return states
