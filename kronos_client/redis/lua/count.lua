-- Counts something of a job under its claim.
-- Returns how often that was; false if the claim is another's.
local record = KEYS[1]
local tag, what = ARGV[1], ARGV[2]

if redis.call('HGET', record, 'holder') ~= tag then
    return false
end
return redis.call('HINCRBY', record, what, 1)
