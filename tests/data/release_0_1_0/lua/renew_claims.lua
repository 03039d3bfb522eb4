-- Restarts the timeout of deliveries, which renews their claims.
-- Returns for each claim 1 if it lives or its holder stored the outcome, 0 if the job ended otherwise, -1 if
-- another has it. A claim also lives if its job's record cannot be read.
-- include: now
-- include: claims
-- include: outcome
local taken_at = KEYS[1] -- and from KEYS[2] on the record and the result of each job that has a claim
local record_ttl_s = ARGV[1] -- and from ARGV[2] on their tags, then tags of deliveries without claims

local function renewed(record, result, tag)
    if is_anothers(record, tag) then
        return -1
    end
    if redis.call('HEXISTS', record, 'ended_at') == 1 then
        return redis.call('HGET', record, 'ended_by') == tag and 1 or 0
    end
    if redis.call('HGET', record, 'holder') == tag or
            (redis.call('EXISTS', record) == 0 and not has_outcome(result)) then
        -- The delivery was put back and no worker has begun it, or Redis lost the record of a job under way.
        redis.call('ZADD', taken_at, now, tag)
        local since = now - (redis.call('HGET', record, 'renewed_at') or now)
        redis.call('HINCRBYFLOAT', record, 'worked_s', string.format('%.6f', math.max(0, since)))
        redis.call('HSET', record, 'holder', tag, 'renewed_at', now_text)
        redis.call('EXPIRE', record, record_ttl_s)
    end
    return 1
end

local answers = {}
for position = 2, #ARGV do
    local tag, record, result = ARGV[position], KEYS[2 * position - 2], KEYS[2 * position - 1]
    redis.call('ZADD', taken_at, 'XX', now, tag) -- XX: an acknowledged delivery stays gone
    if record then
        local is_read, answer = pcall(renewed, record, result, tag) -- apps may write records
        answers[position - 1] = is_read and answer or 1
    end
end
return answers
