-- Has a message delivered again: at once and before all others of its list, or after a delay.
-- include: now
-- include: put_back
local unacked, index, taken = KEYS[1], KEYS[2], KEYS[3]
local tag = ARGV[1]
local delay_s, timeout_s = tonumber(ARGV[2]), tonumber(ARGV[3]) -- timeout_s: of a message without renewals

if delay_s <= 0 then
    put_back(unacked, index, taken, tag)
else
    redis.call('ZADD', index, 'XX', now - timeout_s + delay_s, tag)
end
