-- A job's record has a field 'at', which says where the job's message is:
--   'list LIST'                 waits on this list
--   'delayed UNTIL LIST'        waits until then, and goes to this list
--   'held UNTIL TIMEOUT_S TAG'  taken by a worker, as this delivery; put back if not renewed until then
--   'none'                      removed, or left on its list by a job that has its outcome
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

-- Notes that the message of a delivery is gone, if the record says that it was there, and no other delivery has the job.
-- If the delivery is not listed either, a worker of release 0.1.0 put the message back: then its place is not known.
local function note_gone(job_id, tag, index)
    local record = 'kronos:job:' .. job_id
    local place, holder = unpack(redis.call('HMGET', record, 'at', 'holder'))
    local list = string.match(place or '', '^delayed %S+ (.*)$')
    local was_there = place and string.find(place, tag, 1, true) or
        (list and redis.call('ZSCORE', 'kronos:delayed:' .. list, tag))
    if was_there and not (holder and holder ~= tag and redis.call('ZSCORE', index, holder)) then
        if redis.call('ZSCORE', index, tag) then
            redis.call('HSET', record, 'at', 'none')
        else
            redis.call('HDEL', record, 'at')
        end
    end
end

-- Whether no worker will get the message: it was removed, or ran out two timeouts ago.
local function is_gone(place, now)
    local until_s, timeout_s = string.match(place or '', '^held (%S+) (%S+) ')
    until_s, timeout_s = tonumber(until_s), tonumber(timeout_s)
    return place == 'none' or (until_s and timeout_s and until_s + 2 * timeout_s < now) or false
end
