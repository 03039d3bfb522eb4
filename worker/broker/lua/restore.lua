-- Puts back messages that no worker renews any more, at the end that is served next, the oldest last.
-- Returns how many. Each delivery has its own timeout; one without is judged by the caller's. If this did not run for
-- a while, Redis was away and no worker could renew: then each delivery gets half its timeout to be renewed.
-- include: now
-- include: put_back
-- include: may_write
local unacked, index, claims, taken, watch = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local timeout_s, interval_s = tonumber(ARGV[1]), tonumber(ARGV[2])
local max_messages = tonumber(ARGV[3])

check_may_write(unacked, index, claims)
local looked_at = tonumber(redis.call('HGET', watch, 'looked_at') or now)
redis.call('HSET', watch, 'looked_at', now_text)
if looked_at > now then -- Redis's clock went back
    redis.call('HDEL', watch, 'back_at', 'not_before')
elseif now - looked_at > 2 * interval_s then
    -- Workers of release 0.1.0 read not_before.
    redis.call('HSET', watch, 'back_at', now_text, 'not_before', string.format('%.6f', now + timeout_s / 2))
end
local back_at = tonumber(redis.call('HGET', watch, 'back_at') or 0)
local overdue = {}
for _, tag in ipairs(redis.call('ZRANGEBYSCORE', index, '-inf', now - math.min(timeout_s, interval_s))) do
    local own_timeout_s = claim_of(claims, tag) or timeout_s
    local renewed_at = tonumber(redis.call('ZSCORE', index, tag))
    if now >= math.max(renewed_at + own_timeout_s, back_at + own_timeout_s / 2) then
        overdue[#overdue + 1] = tag
    end
    if #overdue == max_messages then
        break
    end
end
for position = #overdue, 1, -1 do
    put_back(unacked, index, claims, taken, overdue[position])
end
if redis.call('HLEN', claims) > redis.call('HLEN', unacked) then -- release 0.1.0 puts back and leaves these
    for _, tag in ipairs(redis.call('HKEYS', claims)) do
        if redis.call('HEXISTS', unacked, tag) == 0 and not redis.call('ZSCORE', index, tag) then
            redis.call('HDEL', claims, tag)
        end
    end
end
return #overdue
