-- Puts back messages that no worker renews any more, at the end that is served next, the oldest last.
-- Returns how many. Each delivery has its own timeout; one without is judged by the caller's. If this did not run for
-- a while, Redis was away and no worker could renew: then each delivery gets half its timeout to be renewed.
-- include: now
-- include: put_back
-- include: may_write
local unacked, index, claims, num_taken, watch = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local timeout_s, interval_s = tonumber(ARGV[1]), tonumber(ARGV[2])
local max_messages, max_interval_s = tonumber(ARGV[3]), tonumber(ARGV[4]) -- the latter between two renewals

check_may_write(unacked, index, claims)
local looked_at = tonumber(redis.call('HGET', watch, 'looked_at') or now)
redis.call('HSET', watch, 'looked_at', now_text)
if looked_at > now then -- Redis's clock went back, and so do the moments by which messages come back
    redis.call('HDEL', watch, 'back_at', 'not_before')
    local ahead = redis.call('ZRANGEBYSCORE', index, '(' .. now_text, '+inf', 'WITHSCORES')
    for position = 1, #ahead, 2 do
        local moment = math.max(now, tonumber(ahead[position + 1]) - (looked_at - now))
        redis.call('ZADD', index, string.format('%.6f', moment), ahead[position])
    end
elseif now - looked_at > 2 * interval_s then
    -- Workers of release 0.1.0 read not_before.
    redis.call('HSET', watch, 'back_at', now_text, 'away_s', now - looked_at,
        'not_before', string.format('%.6f', now + timeout_s / 2))
end
local back_at, away_s = unpack(redis.call('HMGET', watch, 'back_at', 'away_s'))
back_at, away_s = tonumber(back_at or 0), tonumber(away_s or 0)

-- The moment from which a delivery may be put back. One that is renewed less often than Redis was away is not waited for.
local function overdue_at(tag, own_timeout_s)
    local ends_at = redis.call('ZSCORE', index, tag) + own_timeout_s
    if away_s > 2 * math.min(max_interval_s, own_timeout_s / 4) then
        return math.max(ends_at, back_at + own_timeout_s / 2)
    end
    return ends_at
end

local overdue = {}
for _, tag in ipairs(redis.call('ZRANGEBYSCORE', index, '-inf', now - math.min(timeout_s, interval_s))) do
    if now >= overdue_at(tag, claim_of(claims, tag) or timeout_s) then
        overdue[#overdue + 1] = tag
    end
    if #overdue == max_messages then
        break
    end
end
for position = #overdue, 1, -1 do
    put_back(unacked, index, claims, num_taken, overdue[position])
end
if redis.call('HLEN', claims) > redis.call('HLEN', unacked) then -- release 0.1.0 puts back and leaves these
    for _, tag in ipairs(redis.call('HKEYS', claims)) do
        if redis.call('HEXISTS', unacked, tag) == 0 and not redis.call('ZSCORE', index, tag) then
            local _, job_id = claim_of(claims, tag)
            pcall(note_gone, job_id, tag, index)
            redis.call('HDEL', claims, tag)
        end
    end
end
return #overdue
