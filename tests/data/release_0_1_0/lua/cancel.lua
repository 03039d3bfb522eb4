-- Stores the request to cancel a job.
-- Returns 0, and stores nothing, if the job has ended.
local record, cancel_request = KEYS[1], KEYS[2]
local ttl_s = ARGV[1]

if redis.call('HEXISTS', record, 'ended_at') == 1 then
    return 0
end
redis.call('SET', cancel_request, '1', 'EX', ttl_s)
return 1
