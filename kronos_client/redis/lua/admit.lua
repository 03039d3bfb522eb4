-- Admits a job to a queue: makes its record, sends its message, and announces it to Flower.
-- Returns: 'claimed' if it was sent; 'kept' if its outcome is still kept; 'begun' if a worker has begun the job, whose
-- message is not gone, and the queue is full or the job is shared; 'full', the queue's length and whether the job was
-- submitted before; 'conflict' if the id holds other content. What Redis refuses leaves neither message nor record.
-- include: now
-- include: outcome
-- include: places
-- include: queue_length
-- include: base64
local record, cancel_request, result, num_shared = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local taken, jobs = KEYS[5], KEYS[6] -- then the queue's lists
local fingerprint = ARGV[1]
local result_ttl_s, record_ttl_s = tonumber(ARGV[2]), ARGV[3]
local max_length = tonumber(ARGV[4])
local list = ARGV[5] -- the one that the job will be sent to
local job_id, max_listed = ARGV[6], tonumber(ARGV[7])
local is_shared = ARGV[8] ~= '' -- its senders do not know each other
local before_time, after_time = ARGV[9], ARGV[10] -- of the message, whose body is base64
local event_channel, event = ARGV[11], ARGV[12]
local deadline_s = tonumber(ARGV[13]) -- nil if it has none

local length = 0
for position, num_waiting in ipairs(lengths_of({unpack(KEYS, 7)}, max_length)) do
    length = length + num_waiting + redis.call('ZCARD', 'kronos:delayed:' .. KEYS[6 + position])
end
local holder, ended_at, received_at, at = unpack(
    redis.call('HMGET', record, 'fingerprint', 'ended_at', 'received_at', 'at'))
local is_kept = ended_at and now - ended_at <= result_ttl_s
if holder and holder ~= fingerprint then
    return {'conflict'}
end
local starts_over = is_kept and is_shared and outcome_of(result) ~= 'SUCCESS'
local is_begun = holder and received_at and not ended_at and not is_gone(at, now)
if is_shared and holder and not starts_over and (is_kept or not ended_at) then
    redis.call('INCR', num_shared)
end
if is_kept and not starts_over then
    redis.call('HSETNX', record, 'fingerprint', fingerprint)
    return {'kept'}
end
if is_begun and (is_shared or length >= max_length) then
    return {'begun'}
end
if length >= max_length then
    return {'full', length, holder and not ended_at and 1 or 0}
end

local function note()
    redis.call('ZADD', jobs, now_text, job_id)
    redis.call('ZREMRANGEBYRANK', jobs, 0, -max_listed - 1)
    redis.call('EXPIRE', jobs, record_ttl_s)
    if starts_over then
        redis.call('DEL', result)
    end
    if ended_at then
        redis.call('HDEL', record, 'ended_at', 'ended_by', 'received_at', 'worked_s', 'lost', 'lost_alone', 'put_off',
            'attempts')
    end
    if ended_at or redis.call('EXISTS', record) == 0 then
        redis.call('DEL', cancel_request) -- it concerned an earlier job with this id
    end
    -- How many messages come before it, counted from the first that the list ever had: see cancelled.lua.
    local place = redis.call('LLEN', list) - 1 + (redis.call('HGET', taken, list) or 0)
    redis.call('HSET', record, 'fingerprint', fingerprint, 'list', list, 'place', place, 'at', 'list ' .. list,
        'admitted_at', now_text)
    if deadline_s then
        redis.call('HSET', record, 'deadline_at', string.format('%.6f', now + deadline_s))
    end
    redis.call('EXPIRE', record, record_ttl_s)
end

local time = now_text .. string.rep(' ', -#now_text % 3)
-- First, since Redis refuses a script for lack of room only before its first write.
redis.call('LPUSH', list, before_time .. base64(time) .. after_time)
local is_noted, problem = pcall(note)
if not is_noted then
    redis.call('LPOP', list)
    return redis.error_reply(type(problem) == 'table' and problem.err or problem) -- Redis 7 gives a table
end
pcall(redis.call, 'PUBLISH', event_channel, event)
return {'claimed'}
