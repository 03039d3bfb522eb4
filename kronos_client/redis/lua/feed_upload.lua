-- Stores blocks of an append before a record lists them, and removes as many that none lists any more. ARGV: uid, seconds
-- that such blocks are kept, their names separated by spaces, and their contents. Returns 1; 0 if the feed no longer exists.
-- include: now
local feed, unlisted, blocks = unpack(KEYS)
local uid, kept_s, names = ARGV[1], tonumber(ARGV[2]), ARGV[3]

local function each(names)
    local found = {}
    for name in string.gmatch(names, '%S+') do
        found[#found + 1] = name
    end
    return found
end

if redis.call('HGET', feed, 'uid') ~= uid then
    return 0
end
local fields = {}
for position, name in ipairs(each(names)) do
    if redis.call('HEXISTS', blocks, name) == 1 then
        return 1 -- sent twice, and perhaps listed by now
    end
    fields[2 * position - 1], fields[2 * position] = name, ARGV[position + 3]
end
local noted = redis.pcall('ZADD', unlisted, now_text, names) -- a full Redis refuses it
for _, old in ipairs(redis.call('ZRANGEBYSCORE', unlisted, '-inf', now - kept_s, 'LIMIT', 0, 2)) do
    redis.call('HDEL', blocks, old, unpack(each(old)))
    redis.call('ZREM', unlisted, old)
end
if type(noted) == 'table' and noted.err then
    return noted
end
redis.call('HSET', blocks, unpack(fields))
return 1
