-- Counts something of a job under its lease.
-- Returns how often that was; false if the lease is another's.
local record = KEYS[1]
local token, what = ARGV[1], ARGV[2]

if redis.call('HGET', record, 'lease_token') ~= token then
    return false
end
return redis.call('HINCRBY', record, what, 1)
