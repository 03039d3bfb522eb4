-- Returns for each list: its length; how many of its messages are delayed; how many of those are due; the seconds since
-- its oldest job was admitted, 0 if none waits or another client sent it; and the jobs of feeds. Cancelled jobs do not
-- count. A feed has one message: it counts as the jobs that its due series make, and its oldest due bar as a job.
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

local of_feeds = {}
local function add_feed(name)
    local uid, max_series, list = unpack(redis.call('HMGET', 'kronos:feed:' .. name, 'uid', 'max_series', 'list'))
    local due = 'kronos:feed_due:' .. (uid or '')
    local since = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2]
    if list and since then
        local known = of_feeds[list] or {0, 0}
        local num_jobs = math.ceil(redis.call('ZCARD', due) / max_series)
        of_feeds[list] = {known[1] + num_jobs, math.max(known[2], now - since)}
    end
end
local is_read, names = pcall(redis.call, 'ZRANGE', 'kronos:feeds', 0, -1)
for _, name in ipairs(is_read and names or {}) do
    pcall(add_feed, name) -- another program may have written its keys
end

local states = {}
for first = 1, #KEYS, num_lists do
    local lists = {unpack(KEYS, first, first + num_lists - 1)}
    for position, length in ipairs(lengths_of(lists, max_jobs)) do
        local list = lists[position]
        local delayed = 'kronos:delayed:' .. list
        local num_jobs, oldest_s = unpack(of_feeds[list] or {0, 0})
        states[#states + 1] = {
            math.max(length, num_jobs),
            redis.call('ZCARD', delayed),
            redis.call('ZCOUNT', delayed, '-inf', now),
            string.format('%.3f', math.max(oldest_s, waited_s(oldest_on(list)))),
            num_jobs,
        }
    end
end
return states
