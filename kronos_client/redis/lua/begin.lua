-- A worker begins jobs: stores and publishes their states, and takes their claims for deliveries, in one call.
--
-- Returns for each job:
--   ended     it has its outcome
--   {…         its outcome, if a client ended it while it waited and no worker has counted it
--   conflict  another job with this id is under way
--   unusable  an app wrote another type of key where its record should be
--   error …   Redis's answer; the job may have begun
--   or a list: the job's record. Nothing is stored while another holds the claim. A claim that ended and was not
--   released was lost with its holder.
-- include: now
-- include: outcome
-- include: places
-- include: attempts
-- include: may_write
local unacked, index, claims = KEYS[1], KEYS[2], KEYS[3] -- then of each job its result, record and wish to cancel
local result_ttl_s, record_ttl_s, timeout_s, worker = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local min_held_s = 1 -- for a holder that is overdue and not put back yet

local function begin(result, record, cancel_request, job_id, tag, state, fingerprint)
    local record_type = redis.call('TYPE', record).ok
    local outcome = outcome_of(result)
    if outcome == 'FAILURE' and record_type == 'hash' and redis.call('HGET', record, 'ended_by') == '' then
        redis.call('HSET', record, 'ended_by', tag) -- the first worker that gets the message counts the job
        return redis.call('GET', result)
    elseif outcome then
        return 'ended'
    elseif record_type ~= 'hash' and record_type ~= 'none' then
        return 'unusable'
    end
    if redis.call('HEXISTS', record, 'ended_at') == 1 then -- its outcome is no longer kept: start over
        redis.call('HDEL', record, 'ended_at', 'ended_by', 'received_at', 'worked_s', 'fingerprint', 'lost',
            'lost_alone', 'put_off', 'attempts')
    end
    if fingerprint ~= '' and redis.call('HSETNX', record, 'fingerprint', fingerprint) == 0 and
            redis.call('HGET', record, 'fingerprint') ~= fingerprint then
        redis.call('HDEL', record, 'at') -- of this message, which was noted when it was taken; the other one's is not known
        return 'conflict'
    end
    redis.call('HSETNX', record, 'received_at', now_text)
    redis.call('EXPIRE', record, record_ttl_s)
    redis.call('HSET', claims, tag, timeout_s .. ' ' .. job_id)
    local held_s = 0
    local holder = redis.call('HGET', record, 'holder')
    if holder and holder ~= tag then
        local renewed_at = redis.call('ZSCORE', index, holder)
        if renewed_at then
            if tonumber(renewed_at) > now then -- Redis's clock went back, or it is forged. A living holder renews it
                renewed_at = now
                redis.call('ZADD', index, now, holder)
            end
            held_s = math.max(min_held_s, renewed_at + (claim_of(claims, holder) or timeout_s) - now)
        else
            redis.call('HSET', record, 'lost', (tonumber(redis.call('HGET', record, 'lost') or 0) or 0) + 1)
            note_attempt(record, now_text, 'its process or connection was lost')
        end
    end
    if held_s == 0 then
        redis.call('HSET', record, 'holder', tag, 'renewed_at', now_text, 'begun_at', now_text, 'worker', worker)
        redis.call('ZADD', index, now, tag)
        if redis.call('HEXISTS', unacked, tag) == 1 then -- else it was put back, and no worker has taken it since
            note_held(job_id, tag, now, timeout_s)
        end
        redis.call('SETEX', result, result_ttl_s, state)
        redis.call('PUBLISH', result, state)
    end
    local known = redis.call('HMGET', record, 'received_at', 'worked_s', 'lost')
    return {now_text, known[1], redis.call('EXISTS', cancel_request), string.format('%.6f', held_s),
        known[2] or '0', known[3] or '0'}
end

check_may_write(unacked, index, claims)
local answers = {}
for job = 1, (#ARGV - 4) / 4 do -- of each its id; the delivery's tag; its state; its fingerprint, '' to skip the check
    local result, record, cancel_request = unpack(KEYS, 3 * job + 1, 3 * job + 3)
    local job_id, tag, state, fingerprint = unpack(ARGV, 4 * job + 1, 4 * job + 4)
    local is_done, answer = pcall(begin, result, record, cancel_request, job_id, tag, state, fingerprint)
    if not is_done then -- Redis 7 gives a table
        answer = 'error ' .. (type(answer) == 'table' and answer.err or tostring(answer))
    end
    answers[job] = answer
end
return answers
