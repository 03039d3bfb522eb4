-- Removes a feed: its name, its message and all its keys, which follow the first two. ARGV: name, uid, and the moment before
-- which the last append must have been (empty: any). Returns 1 if it was removed now.
local feed, feeds = KEYS[1], KEYS[2]
local name, uid, before = ARGV[1], ARGV[2], tonumber(ARGV[3])

local appended_at = redis.call('ZSCORE', feeds, name)
if redis.call('HGET', feed, 'uid') ~= uid or (before and appended_at and tonumber(appended_at) > before) then
    return 0
end
local sent, list = unpack(redis.call('HMGET', feed, 'sent', 'list'))
if list then
    redis.call('LREM', list, 1, sent)
end
redis.call('UNLINK', feed, unpack(KEYS, 3))
redis.call('ZREM', feeds, name)
return 1
