-- Gives a job the feed's series that are due, the longest waiting first, and sends the next message if more are due.
-- Returns the feed's options, and of each series its id, record, version and what is unscored; nothing if the feed no longer
-- exists. A job that is delivered again gets the same series, as they are now.
-- include: now
-- include: feed_send
-- include: feed_unscored
local feed, due, taken, series, versions, list = unpack(KEYS)
local uid, job_id = ARGV[1], ARGV[2]

local known_uid, options, max_series, waiting = unpack(
    redis.call('HMGET', feed, 'uid', 'options', 'max_series', 'waiting'))
if known_uid ~= uid then
    return {}
end
local held, ids = redis.call('HGET', taken, job_id), nil
if held then
    ids = cjson.decode(held)
else
    ids = redis.call('ZRANGE', due, 0, max_series - 1)
    if #ids > 0 then
        redis.call('HSET', taken, job_id, cjson.encode(ids)) -- before they are removed: Redis may be full
    end
    if waiting and string.match(waiting, '^%S+') == job_id then
        redis.call('HDEL', feed, 'waiting')
    end
end
if #ids == 0 then
    return {options, {}, {}, {}, {}}
end
redis.call('ZREM', due, unpack(ids))
send_if_due(feed, due, list, uid)
local records, known = redis.call('HMGET', series, unpack(ids)), redis.call('HMGET', versions, unpack(ids))
return {options, ids, records, known, unscored(uid, ids)}
