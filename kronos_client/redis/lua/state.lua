-- Stores and publishes a state of a job that is not its outcome.
-- Returns 1 if it was stored, 0 if the job has its outcome, -1 if another has the job meanwhile.
-- include: now
-- include: outcome
-- include: claims
local result, record = KEYS[1], KEYS[2]
local state, result_ttl_s, tag = ARGV[1], ARGV[2], ARGV[3]

if is_anothers(record, tag) then
    return -1
end
if has_outcome(result) then
    return 0
end
redis.call('SETEX', result, result_ttl_s, state)
redis.call('PUBLISH', result, state)
return 1
