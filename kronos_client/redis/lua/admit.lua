-- Admits a job to a queue, before it is enqueued, and makes its record.
-- Returns the time, and: 'claimed' if it is to be enqueued; 'kept' if its outcome is still kept; 'begun' if
-- the queue is full and a worker has begun the job; 'full', the queue's length and whether the job was
-- submitted before; 'conflict' if the id holds other content.
-- include: now
local record, cancel_request, taken, jobs = KEYS[1], KEYS[2], KEYS[3], KEYS[4] -- then the queue's lists
local fingerprint = ARGV[1]
local result_ttl_s, record_ttl_s = tonumber(ARGV[2]), ARGV[3]
local max_length = tonumber(ARGV[4])
local list = ARGV[5] -- the one that the job will be sent to
local job_id, max_listed = ARGV[6], tonumber(ARGV[7])

local length = 0
for index = 5, #KEYS do
    length = length + redis.call('LLEN', KEYS[index])
end
local holder, ended_at, received_at = unpack(
    redis.call('HMGET', record, 'fingerprint', 'ended_at', 'received_at'))
local is_kept = ended_at and now - ended_at <= result_ttl_s
if holder and holder ~= fingerprint then
    return {now_text, 'conflict'}
end
if is_kept then
    redis.call('HSETNX', record, 'fingerprint', fingerprint)
    return {now_text, 'kept'}
end
if length >= max_length then
    if holder and received_at and not ended_at then
        return {now_text, 'begun'}
    end
    return {now_text, 'full', length, holder and not ended_at and 1 or 0}
end
if ended_at then
    redis.call('HDEL', record, 'ended_at', 'ended_by', 'received_at', 'worked_s', 'lost', 'lost_alone', 'put_off')
end
if ended_at or redis.call('EXISTS', record) == 0 then
    redis.call('DEL', cancel_request) -- it concerned an earlier job with this id
end
-- How many messages come before it, counted from the first that the list ever had: see withdraw.lua.
local place = redis.call('LLEN', list) + (redis.call('HGET', taken, list) or 0)
redis.call('HSET', record, 'fingerprint', fingerprint, 'list', list, 'place', place)
redis.call('EXPIRE', record, record_ttl_s)
redis.call('ZADD', jobs, now_text, job_id)
redis.call('ZREMRANGEBYRANK', jobs, 0, -max_listed - 1)
redis.call('EXPIRE', jobs, record_ttl_s)
return {now_text, 'claimed'}
