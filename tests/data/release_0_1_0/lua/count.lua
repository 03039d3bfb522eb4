-- Adds 1 to a counter of a job under its claim.
-- Returns the counter; false if another has the claim.
local record = KEYS[1]
local tag, what = ARGV[1], ARGV[2]

if redis.call('HGET', record, 'holder') ~= tag then
    return false
end
return redis.call('HINCRBY', record, what, 1)
