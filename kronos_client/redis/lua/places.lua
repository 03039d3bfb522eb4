-- A job's record has a field 'at', which says where the job's message is:
--   'list LIST'                 waits on this list
--   'delayed UNTIL LIST'        waits until then, and goes to this list
--   'held UNTIL TIMEOUT_S TAG'  taken by a worker, as this delivery; put back if not renewed until then
--   'none'                      removed
local function note_place(job_id, place)
    local record = 'kronos:job:' .. job_id
    if job_id ~= '' and redis.call('TYPE', record).ok == 'hash' then
        redis.call('HSET', record, 'at', place)
    end
end

-- The timeout of a delivery, and its job's id, '' if unknown. One of another version has neither.
local function claim_of(claims, tag)
    local timeout_s, job_id = string.match(redis.call('HGET', claims, tag) or '', '^(%S+) (.*)$')
    return tonumber(timeout_s), job_id or ''
end

local function note_held(job_id, tag, renewed_at, timeout_s)
    note_place(job_id, string.format('held %.6f %s %s', renewed_at + timeout_s, timeout_s, tag))
end
