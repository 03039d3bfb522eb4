-- Stores and publishes states of jobs that are not their outcomes.
-- Returns for each 1 if it was stored, 0 if the job has its outcome or Redis refuses it, -1 if another has the job meanwhile.
-- include: outcome
-- include: claims
local result_ttl_s = ARGV[1] -- then of each job its state, and its delivery's tag

local function store(result, record, state, tag)
    if is_anothers(record, tag) then
        return -1
    end
    if has_outcome(result) then
        return 0
    end
    redis.call('SETEX', result, result_ttl_s, state)
    redis.call('PUBLISH', result, state)
    return 1
end

local answers = {}
for job = 1, #KEYS / 2 do
    local is_done, answer = pcall(store, KEYS[2 * job - 1], KEYS[2 * job], ARGV[2 * job], ARGV[2 * job + 1])
    answers[job] = is_done and answer or 0
end
return answers
