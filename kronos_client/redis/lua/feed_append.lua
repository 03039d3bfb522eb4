-- Makes the new records of series visible, all or none, after their blocks were stored. Then these series are due.
-- Returns 'done'; 'gone' if the feed no longer exists; 'changed' if a series has another version than it had when it was
-- read, or a block is no longer there; 'series' or 'bytes' with the number that would exceed its limit.
-- include: now
-- include: feed_send
local feed, feeds, series, versions, due, list = unpack(KEYS)
local name, uid, max_series, max_bytes = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local growth, keep_s = tonumber(ARGV[5]), ARGV[6]
-- Then for each series: id, version that was read ('0': none) and, if its newest bar was known, the moment when that came, record, number of new blocks, their keys, number of old
-- blocks, their keys.
local chunk = 1000

local known_uid, num_bytes = unpack(redis.call('HMGET', feed, 'uid', 'num_bytes'))
if known_uid ~= uid then
    return {'gone'}
end
local ids, expected, records, added, old = {}, {}, {}, {}, {}
local at = 7
while at <= #ARGV do
    ids[#ids + 1], expected[#expected + 1], records[#records + 1] = ARGV[at], ARGV[at + 1], ARGV[at + 2]
    at = at + 3
    for _, keys in ipairs({added, old}) do
        local last = at + tonumber(ARGV[at])
        for position = at + 1, last do
            keys[#keys + 1] = ARGV[position]
        end
        at = last + 1
    end
end

local num_new, changes = 0, {}
for first = 1, #ids, chunk do
    local last = math.min(first + chunk - 1, #ids)
    for offset, known in ipairs(redis.call('HMGET', versions, unpack(ids, first, last))) do
        local position = first + offset - 1
        local version = known and string.match(known, '^%d+') or '0'
        local expected_version, moment = string.match(expected[position], '^(%d+) ?(.*)$')
        if version ~= expected_version then
            return {'changed'}
        end
        if version == '0' then
            num_new = num_new + 1
        end
        changes[position] = string.format('%d %s', version + 1, moment == '' and now_text or moment)
    end
end
for first = 1, #added, chunk do
    local last = math.min(first + chunk - 1, #added)
    if redis.call('EXISTS', unpack(added, first, last)) < last - first + 1 then
        return {'changed'}
    end
end
if redis.call('HLEN', series) + num_new > max_series then
    return {'series', redis.call('HLEN', series) + num_new}
end
if growth > 0 and num_bytes + growth > max_bytes then
    return {'bytes', num_bytes + growth}
end

-- The first command that writes may be refused by a full Redis; those after it are not.
redis.call('HINCRBY', feed, 'num_bytes', growth)
redis.call('ZADD', feeds, now_text, name)
for first = 1, #ids, chunk do
    local pairs_of_records, pairs_of_versions, dues = {}, {}, {}
    for position = first, math.min(first + chunk - 1, #ids) do
        dues[#dues + 1] = now_text
        dues[#dues + 1] = ids[position]
        for _, pair in ipairs({{pairs_of_records, records}, {pairs_of_versions, changes}}) do
            table.insert(pair[1], ids[position])
            table.insert(pair[1], pair[2][position])
        end
    end
    redis.call('HSET', series, unpack(pairs_of_records))
    redis.call('HSET', versions, unpack(pairs_of_versions))
    redis.call('ZADD', due, 'NX', unpack(dues))
end
for _, key in ipairs(added) do
    redis.call('PERSIST', key)
end
for _, key in ipairs(old) do
    redis.call('EXPIRE', key, keep_s) -- who has just read the record still reads them
end
send_if_due(feed, due, list, uid)
return {'done'}
