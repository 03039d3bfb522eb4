-- Renews leases.
-- Returns for each 1 if it was renewed, 0 if the job has ended, -1 if it is another's. A record that Redis
-- lost is made again: nobody else holds the lease then.
-- include: now
-- include: others
local lease_s, record_ttl_s = ARGV[1], ARGV[2]
local records = KEYS -- and from ARGV[3] on the token of each

local ends_at = string.format('%.6f', now + lease_s)
local answers = {}
for index, record in ipairs(records) do
    local token = ARGV[index + 2]
    if is_anothers(record, token) then
        answers[index] = -1
    elseif redis.call('HEXISTS', record, 'ended_at') == 1 then
        answers[index] = 0
    else
        local since = now - (redis.call('HGET', record, 'leased_at') or now)
        redis.call('HINCRBYFLOAT', record, 'leased_s', string.format('%.6f', math.max(0, since)))
        redis.call('HSET', record, 'lease_token', token, 'lease_until', ends_at, 'leased_at', now_text)
        redis.call('EXPIRE', record, record_ttl_s)
        answers[index] = 1
    end
end
return answers
