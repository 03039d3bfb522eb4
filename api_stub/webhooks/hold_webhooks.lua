-- Renews the webhooks that a process of the API holds, and takes those that no living process holds.
-- Returns the ids of the jobs of the webhooks that were taken.
-- include: now
local held_until = KEYS[1]
local hold_s, max_taken = tonumber(ARGV[1]), ARGV[2] -- and from ARGV[3] on the jobs that the process holds

for position = 3, #ARGV do
    redis.call('ZADD', held_until, 'XX', now + hold_s, ARGV[position]) -- XX: a sent one stays gone
end
local taken = redis.call('ZRANGEBYSCORE', held_until, '-inf', now, 'LIMIT', 0, max_taken)
for _, job_id in ipairs(taken) do
    redis.call('ZADD', held_until, now + hold_s, job_id)
end
return taken
