-- Returns for each list: its length; how many of its messages are delayed; how many of those are due; and the seconds
-- since its oldest job was admitted, 0 if none waits or another client sent it.
-- include: now
-- include: job_of

local function waited_s(message)
    local is_read, admitted_at = pcall(redis.call, 'HGET', 'kronos:job:' .. job_of(message or ''), 'admitted_at')
    return is_read and math.max(0, now - (tonumber(admitted_at or now) or now)) or 0
end

local states = {}
for position, list in ipairs(KEYS) do
    local delayed = 'kronos:delayed:' .. list
    states[position] = {
        redis.call('LLEN', list),
        redis.call('ZCARD', delayed),
        redis.call('ZCOUNT', delayed, '-inf', now),
        string.format('%.3f', waited_s(redis.call('LINDEX', list, -1))),
    }
end
return states
