-- Admits a request if its key has room: `limit` at once, then one every `period / limit` seconds (GCRA).
-- Returns 1 or 0, how many more have room now, the seconds until all have, and those until one has.
-- include: now
local key = KEYS[1]
local limit, period_s = tonumber(ARGV[1]), tonumber(ARGV[2])
local step_s = period_s / limit

-- The moment at which the key has all its room. It is never far ahead, even if Redis's clock went back.
local free_at = math.min(math.max(now, tonumber(redis.call('GET', key) or now)), now + period_s)
local is_admitted = free_at + step_s - now <= period_s + step_s / 1000
if is_admitted then
    free_at = free_at + step_s
    redis.call('SET', key, string.format('%.6f', free_at), 'PX', math.ceil((free_at - now) * 1000))
end
local num_left = math.floor((period_s - (free_at - now)) / step_s + 0.001)
local wait_s = math.max(0, free_at + step_s - now - period_s)
return {is_admitted and 1 or 0, math.max(0, num_left), math.ceil(free_at - now), math.ceil(wait_s)}
