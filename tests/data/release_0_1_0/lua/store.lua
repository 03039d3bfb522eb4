-- Stores and publishes a state of a job, or its outcome.
-- Returns 1 if it was stored, 0 if not, -1 if another has the job meanwhile. The first outcome stands. The
-- outcome must be stored even if the record is not a hash.
-- include: now
-- include: outcome
-- include: claims
local result, record, cancel_request = KEYS[1], KEYS[2], KEYS[3]
local taken_at = KEYS[4] -- missing in clients, which cannot check claims
local state, result_ttl_s = ARGV[1], ARGV[2]
local record_ttl_s = ARGV[3] -- '' for a state that is not an outcome
local tag = ARGV[4] -- of the claim under which it is stored; '' for none
local is_over_claim = ARGV[5] ~= '' -- whether to store it even if another has the claim

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
    redis.call('DEL', cancel_request)
end
redis.call('PUBLISH', result, state)
return 1
