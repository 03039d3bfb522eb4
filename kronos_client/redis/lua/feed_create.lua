-- Creates a feed, unless one of this name exists.
-- Returns the uid and the options of the feed that has the name now; nothing if there are too many feeds.
-- include: now
local feed, feeds = KEYS[1], KEYS[2]
local name, uid, options, max_feeds = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local message, max_series = ARGV[5], ARGV[6] -- of a job: feed_send.lua

local known = redis.call('HMGET', feed, 'uid', 'options')
if known[1] then
    return known
end
if redis.call('ZCARD', feeds) >= max_feeds then
    return {}
end
redis.call('HSET', feed, 'uid', uid, 'options', options, 'num_bytes', 0, 'message', message, 'max_series', max_series)
redis.call('ZADD', feeds, now_text, name)
return {uid, options}
