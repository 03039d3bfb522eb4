-- Notes the wish to cancel a job.
-- Returns 0 if the job has ended: a wish that comes just then, or is sent again then, leaves nothing.
local record, wish_to_cancel = KEYS[1], KEYS[2]
local ttl_s = ARGV[1]

if redis.call('HEXISTS', record, 'ended_at') == 1 then
    return 0
end
redis.call('SET', wish_to_cancel, '1', 'EX', ttl_s)
return 1
