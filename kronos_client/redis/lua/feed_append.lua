-- Makes the new records of series visible, all or none, after feed_upload has stored their blocks. Then these series are due.
-- Returns 'done'; 'gone' if the feed no longer exists; 'changed' if a series has another version than it had when it was
-- read, or blocks are no longer there; 'series' or 'bytes' with the number that would exceed its limit.
-- include: now
-- include: expect
-- include: feed_send
local feed, feeds, series, versions, due, turns, latest, list, unlisted = unpack(KEYS)
local name, uid, max_series, max_bytes = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local growth, num_series, num_uploads = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
-- Then for each series: id, record, version that was read ('0': none) and, if its newest bar was known, the moment when that
-- came. Then the names of blocks, as each upload had them; then names of blocks that no record lists now, some together.
local first_upload, chunk = 8 + 3 * num_series, 1000
expect('hash', feed, series, versions, latest)
expect('zset', feeds, due, turns, unlisted)
expect('list', list)

local known_uid, num_bytes = unpack(redis.call('HMGET', feed, 'uid', 'num_bytes'))
if known_uid ~= uid then
    return {'gone'}
end
for at = first_upload, first_upload + num_uploads - 1 do
    if not redis.call('ZSCORE', unlisted, ARGV[at]) then
        return {'changed'}
    end
end
local num_new, chunks = 0, {}
for first = 8, first_upload - 1, 3 * chunk do
    local ids, records, changes, dues, new_turns = {}, {}, {}, {}, {}
    for at = first, math.min(first + 3 * chunk, first_upload) - 3, 3 do
        local id, place = ARGV[at], #records
        ids[#ids + 1] = id
        records[place + 1], records[place + 2] = id, ARGV[at + 1]
        changes[place + 1], changes[place + 2] = id, ARGV[at + 2]
        dues[place + 1], dues[place + 2] = now_text, id
    end
    for position, known in ipairs(redis.call('HMGET', versions, unpack(ids))) do
        local expected, moment = string.match(changes[2 * position], '^(%d+)(.*)$')
        if (known and string.match(known, '^(%d+) %d+%.?%d*$') or '0') ~= expected then
            return {'changed'}
        end
        if expected == '0' then
            num_new = num_new + 1
            new_turns[#new_turns + 1], new_turns[#new_turns + 2] = 0, ids[position]
            -- If Redis has lost its version, it goes on above any that a job may still hold.
            local newest = string.match(redis.call('HGET', latest, ids[position]) or '', '^%d+')
            expected = newest and newest + 1000 or 0
        end
        changes[2 * position] = string.format('%d%s', expected + 1, moment == '' and ' ' .. now_text or moment)
    end
    chunks[#chunks + 1] = {records, changes, dues, new_turns}
end
local num_then = redis.call('HLEN', versions) + num_new
if num_then > max_series then
    return {'series', num_then}
end
if growth > 0 and num_bytes + growth > max_bytes then
    return {'bytes', num_bytes + growth}
end

-- The first command that writes may be refused by a full Redis; those after it are not.
redis.call('HINCRBY', feed, 'num_bytes', growth)
redis.call('ZADD', feeds, now_text, name)
for _, each in ipairs(chunks) do
    redis.call('HSET', series, unpack(each[1]))
    redis.call('HSET', versions, unpack(each[2]))
    redis.call('ZADD', due, 'NX', unpack(each[3]))
    if each[4][1] then
        redis.call('ZADD', turns, unpack(each[4]))
    end
end
for at = first_upload, #ARGV do
    if at < first_upload + num_uploads then
        redis.call('ZREM', unlisted, ARGV[at])
    else
        redis.call('ZADD', unlisted, now_text, ARGV[at]) -- who has just read the record still reads them
    end
end
send_if_due(feed, due, list, uid)
return {'done'}
