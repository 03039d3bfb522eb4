-- Puts a message back at the end of its list that is served next.
local function put_back(unacked, index, taken, tag)
    local held = redis.call('HGET', unacked, tag)
    redis.call('HDEL', unacked, tag)
    redis.call('ZREM', index, tag)
    if held then
        local newline = string.find(held, '\n', 1, true)
        local source = string.sub(held, 1, newline - 1)
        redis.call('RPUSH', source, string.sub(held, newline + 1))
        redis.call('HINCRBY', taken, source, -1)
    end
end
