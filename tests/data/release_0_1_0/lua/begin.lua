-- A worker begins a job: stores and publishes its state, and takes the claim for a delivery.
-- Returns false if the job has its outcome, 'conflict' if another job with this id is under way, else the
-- job's record. Nothing is stored while another holds the claim. A claim that ended and was not released was
-- lost with its holder.
-- include: now
-- include: outcome
local result, record, cancel_request, taken_at = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local state, result_ttl_s, record_ttl_s = ARGV[1], ARGV[2], ARGV[3]
local tag, timeout_s = ARGV[4], tonumber(ARGV[5])
local fingerprint = ARGV[6] -- '' to skip the check
local min_held_s = 1 -- for a holder that is overdue and not put back yet

if has_outcome(result) then
    return false
end
if redis.call('HEXISTS', record, 'ended_at') == 1 then -- its outcome is no longer kept: start over
    redis.call('HDEL', record, 'ended_at', 'ended_by', 'received_at', 'worked_s', 'fingerprint', 'lost',
        'lost_alone', 'put_off')
    redis.call('DEL', cancel_request)
end
if fingerprint ~= '' and redis.call('HSETNX', record, 'fingerprint', fingerprint) == 0 and
        redis.call('HGET', record, 'fingerprint') ~= fingerprint then
    return 'conflict'
end
redis.call('HSETNX', record, 'received_at', now_text)
redis.call('EXPIRE', record, record_ttl_s)
local held_s = 0
local holder = redis.call('HGET', record, 'holder')
if holder and holder ~= tag then
    local renewed_at = redis.call('ZSCORE', taken_at, holder)
    if renewed_at then
        if tonumber(renewed_at) > now then -- Redis's clock went back, or it is forged. A living holder renews it
            renewed_at = now
            redis.call('ZADD', taken_at, now, holder)
        end
        held_s = math.max(min_held_s, renewed_at + timeout_s - now)
    else
        redis.call('HINCRBY', record, 'lost', 1)
    end
end
if held_s == 0 then
    redis.call('HSET', record, 'holder', tag, 'renewed_at', now_text)
    redis.call('ZADD', taken_at, now, tag)
    redis.call('SETEX', result, result_ttl_s, state)
    redis.call('PUBLISH', result, state)
end
local known = redis.call('HMGET', record, 'received_at', 'worked_s', 'lost', 'lost_alone')
return {now_text, known[1], redis.call('EXISTS', cancel_request), string.format('%.6f', held_s),
    known[2] or '0', known[3] or '0', known[4] or '0'}
