-- A worker begins a job: stores and publishes its state, and takes the lease for the token.
-- Returns false if the job has its outcome, 'conflict' if another job with this id is under way, else what is
-- known of the job. While another holds the lease nothing is stored. A lease that ran out and was never
-- released was lost with its holder.
-- include: now
-- include: outcome
local result, record, wish_to_cancel = KEYS[1], KEYS[2], KEYS[3]
local state, result_ttl_s, record_ttl_s = ARGV[1], ARGV[2], ARGV[3]
local token, lease_s = ARGV[4], tonumber(ARGV[5]) -- token: '' for a job that needs no lease
local fingerprint = ARGV[6] -- '' if it does not matter

if has_outcome(result) then
    return false
end
if redis.call('HEXISTS', record, 'ended_at') == 1 then -- its outcome is no longer kept: it begins anew
    redis.call('HDEL', record, 'ended_at', 'ended_by', 'received_at', 'leased_s', 'fingerprint', 'lost',
        'lost_alone', 'put_off')
    redis.call('DEL', wish_to_cancel)
end
if fingerprint ~= '' and redis.call('HSETNX', record, 'fingerprint', fingerprint) == 0 and
        redis.call('HGET', record, 'fingerprint') ~= fingerprint then
    return 'conflict'
end
redis.call('HSETNX', record, 'received_at', now_text)
redis.call('EXPIRE', record, record_ttl_s)
local held_s = 0
if token ~= '' then
    local holder = redis.call('HGET', record, 'lease_token')
    if holder and holder ~= token then
        held_s = math.max(0, tonumber(redis.call('HGET', record, 'lease_until')) - now)
        if tonumber(redis.call('HGET', record, 'leased_at') or 0) > now then
            held_s = math.min(held_s, lease_s) -- Redis's clock went back
        end
        if held_s == 0 then
            redis.call('HINCRBY', record, 'lost', 1)
        end
    end
    if held_s == 0 then
        local ends_at = string.format('%.6f', now + lease_s)
        redis.call('HSET', record, 'lease_token', token, 'lease_until', ends_at, 'leased_at', now_text)
    end
end
if held_s == 0 then
    redis.call('SETEX', result, result_ttl_s, state)
    redis.call('PUBLISH', result, state)
end
local known = redis.call('HMGET', record, 'received_at', 'leased_s', 'lost', 'lost_alone')
return {now_text, known[1], redis.call('EXISTS', wish_to_cancel), string.format('%.6f', held_s),
    known[2] or '0', known[3] or '0', known[4] or '0'}
