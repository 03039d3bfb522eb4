-- Gives a job the feed's series that are due, those first that a job took longest ago, and sends the next message if more are
-- due. Returns the feed's options, the number of its series, and the parts of adaptive calibrations that they share; then of each
-- series its id, record, version and what is unscored. Returns nothing if the feed no longer exists. A job that is delivered
-- again gets the same series, as they are now, or none if their outcomes are stored.
-- include: now
-- include: expect
-- include: feed_send
local feed, list, job, due, taken, turns, series, versions, adaptive, pending = unpack(KEYS)
local uid, job_id = ARGV[1], ARGV[2]
expect('hash', feed, taken, series, versions, adaptive, pending)
expect('zset', due, turns)
expect('list', list)

-- By when they became due, those that are taken early in a tick would be again before others: twice as often.
local function next_ids(number)
    local ids, first = redis.call('ZRANGE', due, 0, number), 0
    if #ids <= number then
        return ids
    end
    local found = {}
    while #found < number do
        local part = redis.call('ZRANGE', turns, first, first + 999)
        if #part == 0 then
            break
        end
        for position, is_due in ipairs(redis.call('ZMSCORE', due, unpack(part))) do
            if is_due and #found < number then
                found[#found + 1] = part[position]
            end
        end
        first = first + #part
    end
    return found
end

local known_uid, options, max_series, waiting = unpack(
    redis.call('HMGET', feed, 'uid', 'options', 'max_series', 'waiting'))
if known_uid ~= uid then
    return {}
end
local held, ids = held_by(taken, job_id), {}
if next(held) then
    for id in pairs(held) do
        ids[#ids + 1] = id
    end
    table.sort(ids)
else
    if redis.call('TYPE', job).ok ~= 'hash' or redis.call('HEXISTS', job, 'feed_done') == 0 then
        ids = next_ids(tonumber(max_series))
    end
    if waiting and string.match(waiting, '^%S+') == job_id then
        redis.call('HDEL', feed, 'waiting')
    end
end
if #ids == 0 then
    return {options, 0, {}, {}, {}, {}, {}}
end
local known, now_held = redis.call('HMGET', versions, unpack(ids)), {}
local answer = {options, redis.call('HLEN', versions), redis.call('HGETALL', adaptive), ids,
    redis.call('HMGET', series, unpack(ids)), known, redis.call('HMGET', pending, unpack(ids))}
local turn = redis.call('HINCRBY', feed, 'num_taken', #ids) - #ids
for position, id in ipairs(ids) do
    now_held[id] = tonumber(string.match(known[position] or '', '^(%d+) %d+%.?%d*$') or 0)
    redis.call('ZADD', turns, turn + position, id)
end
redis.call('HSET', taken, job_id, cjson.encode(now_held))
redis.call('ZREM', due, unpack(ids))
send_if_due(feed, due, list, uid)
return answer
