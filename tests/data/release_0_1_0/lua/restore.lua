-- Puts back messages that no worker renews any more, at the end that is served next, the oldest last.
-- Returns how many. If this did not run for a while, Redis was away and no worker could renew: then nothing
-- is put back for some time.
-- include: now
-- include: put_back
local unacked, index, taken, watch = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local timeout_s = tonumber(ARGV[1])
local gap_s, grace_s = tonumber(ARGV[2]), ARGV[3] -- no run for gap_s: put nothing back for grace_s
local max_messages = ARGV[4]

local looked_at = tonumber(redis.call('HGET', watch, 'looked_at') or now)
redis.call('HSET', watch, 'looked_at', now_text)
if looked_at > now then -- Redis's clock went back
    redis.call('HDEL', watch, 'not_before')
elseif now - looked_at > gap_s then
    redis.call('HSET', watch, 'not_before', string.format('%.6f', now + grace_s))
end
if now < tonumber(redis.call('HGET', watch, 'not_before') or 0) then
    return 0
end
local tags = redis.call('ZRANGEBYSCORE', index, '-inf', now - timeout_s, 'LIMIT', 0, max_messages)
for position = #tags, 1, -1 do
    put_back(unacked, index, taken, tags[position])
end
return #tags
