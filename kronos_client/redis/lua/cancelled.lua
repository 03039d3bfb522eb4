-- Jobs that were cancelled while they waited. The message of such a job stays on its list until a worker takes it and
-- drops it, and does not count in the queue's length.
--
--   kronos:cancelled:LIST  a sorted set of these jobs, each with its message's bytes, by place
--   kronos:cancelled       a hash of the bytes on each list
--
-- A place is the number of messages that ever came before on this list. kronos:taken has the number of those that were
-- taken off it. So a message with a lower place is gone, whichever release's worker took it, and nobody has to note that.
local function num_taken_off(list)
    return tonumber(redis.call('HGET', 'kronos:taken', list) or 0)
end

-- How many of these jobs wait on a list, and their bytes. Forgets the others. Must be called before messages come back
-- to a list: then its number of taken ones falls.
local function cancelled_on(list)
    local key = 'kronos:cancelled:' .. list
    local last = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]
    if not last then
        return 0, 0
    end
    local num_taken = num_taken_off(list)
    if tonumber(last) >= num_taken + redis.call('LLEN', list) then -- the list was purged
        redis.call('DEL', key)
        redis.call('HDEL', 'kronos:cancelled', list)
        return 0, 0
    end
    local gone, num_bytes = redis.call('ZRANGEBYSCORE', key, '-inf', '(' .. num_taken), 0
    for _, job in ipairs(gone) do
        num_bytes = num_bytes + string.match(job, '^%d+')
    end
    if #gone > 0 then
        redis.call('ZREMRANGEBYSCORE', key, '-inf', '(' .. num_taken)
        redis.call('HINCRBY', 'kronos:cancelled', list, -num_bytes)
    end
    return redis.call('ZCARD', key), tonumber(redis.call('HGET', 'kronos:cancelled', list) or 0)
end

local function note_cancelled(job_id, list, place, num_bytes)
    if redis.call('ZADD', 'kronos:cancelled:' .. list, place, num_bytes .. ' ' .. job_id) == 1 then
        redis.call('HINCRBY', 'kronos:cancelled', list, num_bytes)
    end
end

-- Notes in its job's record that a message came to this place of a list.
local function note_listed(job_id, list, place, num_bytes)
    local record = 'kronos:job:' .. job_id
    if job_id == '' or redis.call('TYPE', record).ok ~= 'hash' then
        return
    end
    redis.call('HSET', record, 'at', 'list ' .. list)
    if redis.call('HEXISTS', record, 'place') == 1 then
        redis.call('HSET', record, 'list', list, 'place', place)
    end
    if redis.call('HEXISTS', record, 'ended_at') == 1 then
        note_cancelled(job_id, list, place, num_bytes)
    end
end
