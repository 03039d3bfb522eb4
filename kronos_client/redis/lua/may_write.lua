-- Raises here, before anything is changed, what Redis answers if it takes no writes or forbids these commands: it
-- does not roll a script back. Redis refuses a script for lack of room only before its first write, and these need none.
local function check_may_write(unacked, index, claims)
    redis.call('ZREM', index, '')
    redis.call('HDEL', unacked, '')
    redis.call('HDEL', claims, '')
end
