-- Ends jobs: stores and publishes their outcomes, and removes their messages and claims, in one call. Nothing else
-- removes the message of a job.
--
-- Returns for each job:
--   stored    its outcome is stored, by this call or by an earlier one for the same delivery; the message is removed
--   ended     it had its outcome already, which stands; the message is removed
--   repeated  the same, and another delivery had taken over the job
--   held      another delivery has the job: nothing is stored, and the message stays
--   open      no outcome was given, and it has none: the message stays
--   error …   Redis's answer; the outcome may be stored, and the message stays
-- A message with an entry for the dead messages is moved to them in any case.
-- include: now
-- include: outcome
-- include: claims
-- include: places
-- include: cancelled
-- include: job_of
-- include: may_write
local result_ttl_s, record_ttl_s, max_dead = ARGV[1], ARGV[2], tonumber(ARGV[3])
local num_jobs = (#ARGV - 3) / 3 -- of each the tag; its outcome, or ''; its entry for the dead messages, or ''
local unacked, index, claims, dead = unpack(KEYS, 3 * num_jobs + 1) -- missing in clients, which take no messages

-- Whether the message of a job that ends waits where the job's record says; if so, it is noted.
local function waits(record, at, place)
    local list = string.match(at or '', '^list (.*)$')
    local message = list and place and redis.call('LINDEX', list, num_taken_off(list) - place - 1)
    local job_id = string.sub(record, #'kronos:job:' + 1)
    if message and job_of(message) == job_id then
        note_cancelled(job_id, list, place, #message)
        return true
    end
end

local function store(result, record, cancel_request, tag, outcome)
    local is_record = redis.call('TYPE', record).ok == 'hash'
    local holder, ended_by, at, place
    if is_record then
        holder, ended_by, at, place = unpack(redis.call('HMGET', record, 'holder', 'ended_by', 'at', 'place'))
    end
    local is_new = not has_outcome(result)
    if is_new and outcome == '' then
        return 'open'
    end
    if is_new and holder and holder ~= tag and (not index or redis.call('ZSCORE', index, holder)) then
        return 'held'
    end
    if is_new then
        redis.call('SETEX', result, result_ttl_s, outcome)
    end
    if is_new or (tag ~= '' and holder == tag) then -- the latter if an earlier call failed here
        redis.call('PUBLISH', result, redis.call('GET', result))
        if is_record then
            redis.call('HSET', record, 'ended_at', now_text, 'ended_by', tag, 'at', 'none')
            redis.call('HDEL', record, 'holder', 'renewed_at', 'deadline_at')
            redis.call('EXPIRE', record, record_ttl_s)
            ended_by = tag
        end
    end
    local is_noted, is_waiting = pcall(waits, record, is_new and at, place)
    -- The request stays as long as the message: a worker may take it when the outcome is no longer kept.
    if (is_new or tag ~= '') and not (is_noted and is_waiting) then
        redis.call('DEL', cancel_request)
    end
    if is_new or (tag ~= '' and ended_by == tag) then
        return 'stored'
    end
    return is_record and is_anothers(record, tag) and 'repeated' or 'ended'
end

local function remove(tag, entry)
    if entry ~= '' and redis.call('HEXISTS', unacked, tag) == 1 then -- once, even if the call is repeated
        redis.call('LPUSH', dead, entry)
        redis.call('LTRIM', dead, 0, max_dead - 1)
        local _, job_id = claim_of(claims, tag)
        pcall(note_gone, job_id, tag, index)
    end
    redis.call('ZREM', index, tag)
    redis.call('HDEL', claims, tag)
    redis.call('HDEL', unacked, tag)
end

if unacked then
    check_may_write(unacked, index, claims)
end
local answers = {}
for job = 1, num_jobs do
    local result, record, cancel_request = unpack(KEYS, 3 * job - 2, 3 * job)
    local tag, outcome, entry = unpack(ARGV, 3 * job + 1, 3 * job + 3)
    local is_done, answer = pcall(function()
        local is_only_dead = outcome == '' and entry ~= '' -- where the outcome cannot be stored
        local answer = is_only_dead and 'open' or store(result, record, cancel_request, tag, outcome)
        if unacked and (entry ~= '' or (answer ~= 'open' and answer ~= 'held')) then
            remove(tag, entry)
        end
        return answer
    end)
    if not is_done then -- Redis 7 gives a table
        answer = 'error ' .. (type(answer) == 'table' and answer.err or tostring(answer))
    end
    answers[job] = answer
end
return answers
