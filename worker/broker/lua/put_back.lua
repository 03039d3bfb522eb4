-- Puts a taken message back at the end of its list that is served next. Written before it is removed: if Redis
-- refuses a command in between, the message is there twice, not lost.
-- include: places
local function put_back(unacked, index, claims, taken, tag)
    local held = redis.call('HGET', unacked, tag)
    local _, job_id = claim_of(claims, tag)
    if held then
        local newline = string.find(held, '\n', 1, true)
        local source = string.sub(held, 1, newline - 1)
        redis.call('RPUSH', source, string.sub(held, newline + 1))
        redis.call('HINCRBY', taken, source, -1)
        redis.call('ZREM', 'kronos:delayed:' .. source, tag)
        pcall(note_place, job_id, 'list ' .. source)
    else
        pcall(note_gone, job_id, tag, index)
    end
    redis.call('ZREM', index, tag)
    redis.call('HDEL', claims, tag)
    redis.call('HDEL', unacked, tag)
end
