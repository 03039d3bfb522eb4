-- Removes a feed's name and its message, so that its series can be removed afterwards. ARGV: name, uid, and the moment before which the
-- last append must have been (empty: any). Returns 1 if it was removed now.
local feed, feeds, gone = KEYS[1], KEYS[2], KEYS[3]
local name, uid, before = ARGV[1], ARGV[2], tonumber(ARGV[3])

local appended_at = redis.call('ZSCORE', feeds, name)
if redis.call('HGET', feed, 'uid') ~= uid or (before and appended_at and tonumber(appended_at) > before) then
    return 0
end
redis.call('SADD', gone, uid)
local sent, list = unpack(redis.call('HMGET', feed, 'sent', 'list'))
if list then
    redis.call('LREM', list, 1, sent)
end
redis.call('DEL', feed)
redis.call('ZREM', feeds, name)
return 1
