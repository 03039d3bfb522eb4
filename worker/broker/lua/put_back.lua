-- Puts a taken message back at the end of its list that is served next. Copied before it is removed, and after all
-- that Redis may refuse: so it is neither lost nor copied again and again.
-- include: places
-- include: cancelled
local function put_back(unacked, index, claims, num_taken, tag)
    local held = redis.call('HGET', unacked, tag)
    local _, job_id = claim_of(claims, tag)
    if held then
        local newline = string.find(held, '\n', 1, true)
        local source = string.sub(held, 1, newline - 1)
        redis.call('ZREM', 'kronos:delayed:' .. source, tag)
        redis.call('RPUSH', source, string.sub(held, newline + 1))
        pcall(cancelled_on, source)
        local _, place = pcall(redis.call, 'HINCRBY', num_taken, source, -1)
        pcall(note_listed, job_id, source, place, #held - newline)
    else
        pcall(note_gone, job_id, tag, index)
    end
    redis.call('ZREM', index, tag)
    redis.call('HDEL', claims, tag)
    redis.call('HDEL', unacked, tag)
end
