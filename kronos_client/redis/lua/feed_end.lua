-- Stores what a job computed for series of a feed, and adds it to the feed's updates, unless a newer version of the series
-- is there. Series without an outcome are due again. Returns 1, or 0 if the feed no longer exists.
-- include: now
-- include: feed_send
local feed, due, taken, latest, updates, list = unpack(KEYS)
local uid, job_id = ARGV[1], ARGV[2] -- then of each series its id, version and outcome, or ''

if redis.call('HGET', feed, 'uid') ~= uid then
    return 0
end
local max_updates = math.max(100, 4 * redis.call('HLEN', latest))
for at = 3, #ARGV, 3 do
    local id, version, outcome = ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2] -- compressed
    local known = redis.call('HGET', latest, id)
    if outcome == '' then
        redis.call('ZADD', due, 'NX', now_text, id)
    elseif not known or tonumber(string.match(known, '^%d+')) < version then
        redis.call('HSET', latest, id, string.format('%d ', version) .. outcome)
        redis.call('XADD', updates, 'MAXLEN', '~', max_updates, '*', 'series', id, 'outcome', outcome)
    end
end
redis.call('HDEL', taken, job_id)
send_if_due(feed, due, list, uid)
return 1
