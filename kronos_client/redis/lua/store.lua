-- Stores and publishes a state of a job, or its outcome.
-- Returns 1 if it counts, 0 if it does not, -1 if another was given the job meanwhile. The first outcome
-- stands. A record that is no hash must not keep the outcome from being stored.
-- include: now
-- include: outcome
-- include: claims
local result, record, wish_to_cancel = KEYS[1], KEYS[2], KEYS[3]
local taken_at = KEYS[4] -- missing if it is not known which claims live
local state, result_ttl_s = ARGV[1], ARGV[2]
local record_ttl_s = ARGV[3] -- '' for a state that is no outcome
local tag = ARGV[4] -- of the claim that it is stored under; '' for none
local is_over_claim = ARGV[5] ~= '' -- whether it ends the job, whoever holds it

local is_record = redis.call('TYPE', record).ok == 'hash'
if has_outcome(result) then
    return is_record and is_anothers(record, tag) and -1 or 0
end
local holder = is_record and redis.call('HGET', record, 'holder')
if holder and holder ~= tag and not is_over_claim then
    if tag ~= '' then
        return -1
    end
    if not taken_at or redis.call('ZSCORE', taken_at, holder) then
        return 0
    end
end
redis.call('SETEX', result, result_ttl_s, state)
if record_ttl_s ~= '' then
    if is_record then
        redis.call('HSET', record, 'ended_at', now_text, 'ended_by', tag)
        redis.call('HDEL', record, 'holder', 'renewed_at')
        redis.call('EXPIRE', record, record_ttl_s)
    end
    redis.call('DEL', wish_to_cancel)
end
redis.call('PUBLISH', result, state)
return 1
