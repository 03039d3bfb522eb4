-- Moves a message to the list of dead messages, only once even if the command is sent twice.
local unacked, index, dead = KEYS[1], KEYS[2], KEYS[3]
local tag, entry, max_entries = ARGV[1], ARGV[2], ARGV[3]

redis.call('ZREM', index, tag)
if redis.call('HDEL', unacked, tag) == 1 then
    redis.call('LPUSH', dead, entry)
    redis.call('LTRIM', dead, 0, max_entries - 1)
end
