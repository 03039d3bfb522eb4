-- Stores what a job computed for series of a feed, adds it to the feed's updates, and adds the scores of earlier forecasts,
-- all or nothing. Series without an outcome are due again. Returns nothing, or what is unscored if other jobs have ended
-- series meanwhile; so each bar is scored once. The job holds series on that a later delivery took with newer bars.
-- include: now
-- include: expect
-- include: feed_send
local feed, list, job, due, taken, latest, updates, scores, adaptive, pending = unpack(KEYS)
local uid, job_id, kept_s = ARGV[1], ARGV[2], ARGV[3]
-- Then the number of sums of scores, and of each its field and float32 numbers to add; the same of the parts of adaptive
-- calibrations that all series share; then of each series its id, version, outcome (or ''), the forecast's manifest, which
-- stands after the outcome and what is kept, the version whose outcome was newest, what is unscored of the series now, what is
-- kept of the forecast (or ''), the number of forecasts that need not be kept any longer, and their versions.
local position, limit = 4, tonumber(ARGV[4])

local function next_value()
    position = position + 1
    return ARGV[position]
end

local function next_pairs()
    local found = {}
    for at = 1, tonumber(next_value()) do
        found[at] = {next_value(), next_value()}
    end
    return found
end

local function add(key, field, numbers, limit)
    local known, sums = redis.call('HGET', key, field), {}
    local is_known = known and #known == 2 * #numbers -- else another program wrote it
    for at = 1, #numbers / 4 do
        local before = is_known and struct.unpack('<d', known, 8 * at - 7) or 0
        local sum = before + struct.unpack('<f', numbers, 4 * at - 3)
        sums[at] = struct.pack('<d', math.max(-limit, math.min(limit, sum)))
    end
    redis.call('HSET', key, field, table.concat(sums))
end

local of_day = string.format('%s:%d', scores, math.floor(now / 86400))
expect('hash', feed, taken, latest, scores, of_day, adaptive, pending)
expect('zset', due)
expect('stream', updates)
expect('list', list)

local function newest_of(id)
    return tonumber(string.match(redis.call('HGET', pending, id) or '', '^(%d+) %-?%d+[ %d]*\n') or 0)
end

if redis.call('HGET', feed, 'uid') ~= uid then
    return
end
local fields, shared = next_pairs(), next_pairs()
local series, ids, has_changed = {}, {}, false
while position < #ARGV do
    local one = {id = next_value(), version = next_value(), outcome = next_value(), manifest = next_value(),
        before = next_value(), unscored = next_value(), forecast = next_value(), done = {}}
    for at = 1, tonumber(next_value()) do
        one.done[at] = next_value()
    end
    has_changed = has_changed or (one.outcome ~= '' and newest_of(one.id) ~= tonumber(one.before))
    series[#series + 1], ids[#ids + 1] = one, one.id
end
if has_changed then
    return redis.call('HMGET', pending, unpack(ids))
end

local max_updates = math.max(100, 4 * redis.call('HLEN', latest))
for _, one in ipairs(series) do
    if one.outcome == '' then
        redis.call('ZADD', due, 'NX', now_text, one.id)
    else
        redis.call('HSET', pending, one.id, one.unscored)
        local outcome = one.outcome .. one.manifest
        redis.call('HSET', latest, one.id, one.version .. ' ' .. outcome)
        redis.call('XADD', updates, 'MAXLEN', '~', max_updates, '*', 'series', one.id, 'outcome', outcome)
        if one.forecast ~= '' then
            redis.call('HSET', pending, one.id .. '\n' .. one.version, one.forecast .. one.manifest)
        end
        for _, version in ipairs(one.done) do
            redis.call('HDEL', pending, one.id .. '\n' .. version)
        end
    end
end
for _, pair in ipairs(fields) do
    add(scores, pair[1], pair[2], math.huge)
    add(of_day, pair[1], pair[2], math.huge)
end
for _, pair in ipairs(shared) do
    add(adaptive, pair[1], pair[2], limit)
end
redis.call('EXPIRE', of_day, kept_s)
local has_ended = true
for id, version in pairs(held_by(taken, job_id)) do
    has_ended = has_ended and (newest_of(id) >= version or redis.call('ZSCORE', due, id))
end
if has_ended then
    redis.call('HDEL', taken, job_id)
    if redis.call('TYPE', job).ok == 'hash' then
        redis.call('HSET', job, 'feed_done', 1) -- delivered again before it is ended, it must not take others
    end
end
send_if_due(feed, due, list, uid)
