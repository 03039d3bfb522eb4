"""The Lua scripts behind ``deliveries.py``: how a message leaves its list, and comes back.

A message that was taken stands in a hash, behind the list's key and a newline, under the tag of its delivery;
the moment of that, by Redis's clock, in a sorted set. ``taken`` counts for each list what left it by its end.
"""

from typing import Final

_NOW: Final = """
local moment = redis.call('TIME')
local now = moment[1] + moment[2] / 1000000
"""

# KEYS: unacked, index, taken, then lists in the order in which they are served. ARGV: tag, most bytes,
# bytes of a larger message that are given at its two ends. Gives the list, the message's length, and the
# message; of a larger one its ends. The same tag gives the same message: a command may be sent twice.
TAKE: Final = f"""{_NOW}
local source, message
local held = redis.call('HGET', KEYS[1], ARGV[1])
if held then
    local newline = string.find(held, '\\n', 1, true)
    source, message = string.sub(held, 1, newline - 1), string.sub(held, newline + 1)
else
    for index = 4, #KEYS do
        message = redis.call('RPOP', KEYS[index])
        if message then
            source = KEYS[index]
            break
        end
    end
    if not message then
        return false
    end
    redis.call('HSET', KEYS[1], ARGV[1], source .. '\\n' .. message)
    redis.call('ZADD', KEYS[2], now, ARGV[1])
    redis.call('HINCRBY', KEYS[3], source, 1)
end
if #message <= tonumber(ARGV[2]) then
    return {{source, #message, message}}
end
return {{source, #message, string.sub(message, 1, ARGV[3]), string.sub(message, -ARGV[3])}}
"""

_PUT_BACK: Final = """
local function put_back(tag)
    local held = redis.call('HGET', KEYS[1], tag)
    redis.call('HDEL', KEYS[1], tag)
    redis.call('ZREM', KEYS[2], tag)
    if held then
        local newline = string.find(held, '\\n', 1, true)
        local source = string.sub(held, 1, newline - 1)
        redis.call('RPUSH', source, string.sub(held, newline + 1))
        redis.call('HINCRBY', KEYS[3], source, -1)
    end
end
"""

# KEYS: unacked, index, taken. ARGV: tag, seconds until it is to be delivered again, seconds after which an
# unacknowledged message is.
PUT_BACK: Final = f"""{_NOW}{_PUT_BACK}
if tonumber(ARGV[2]) <= 0 then
    put_back(ARGV[1])
else
    redis.call('ZADD', KEYS[2], 'XX', now - ARGV[3] + ARGV[2], ARGV[1])
end
"""

# KEYS: index. ARGV: tags. What was acknowledged meanwhile is not brought back (XX).
RENEW: Final = f"""{_NOW}
for _, tag in ipairs(ARGV) do
    redis.call('ZADD', KEYS[1], 'XX', now, tag)
end
"""

# KEYS: unacked, index, taken, watch. ARGV: seconds after which an unacknowledged message is delivered again,
# seconds without a look after which nothing is, seconds for which nothing is then, most messages. Gives how
# many went back to their lists: to the end that is served next, the oldest last.
RESTORE: Final = f"""{_NOW}{_PUT_BACK}
local looked_at = redis.call('HGET', KEYS[4], 'looked_at')
redis.call('HSET', KEYS[4], 'looked_at', string.format('%.6f', now))
if looked_at and tonumber(looked_at) > now then -- Redis's clock went back
    redis.call('HDEL', KEYS[4], 'not_before')
elseif looked_at and now - looked_at > tonumber(ARGV[2]) then
    redis.call('HSET', KEYS[4], 'not_before', string.format('%.6f', now + ARGV[3]))
end
if now < tonumber(redis.call('HGET', KEYS[4], 'not_before') or 0) then
    return 0
end
local tags = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now - ARGV[1], 'LIMIT', 0, ARGV[4])
for index = #tags, 1, -1 do
    put_back(tags[index])
end
return #tags
"""

# KEYS: unacked, index, dead. ARGV: tag, entry, most entries.
BURY: Final = """
redis.call('ZREM', KEYS[2], ARGV[1])
if redis.call('HDEL', KEYS[1], ARGV[1]) == 1 then -- once, however often the command is sent
    redis.call('LPUSH', KEYS[3], ARGV[2])
    redis.call('LTRIM', KEYS[3], 0, ARGV[3] - 1)
end
"""
