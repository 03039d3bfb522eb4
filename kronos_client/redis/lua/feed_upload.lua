-- Stores blocks of an append before a record lists them, and removes as many that none lists any more. ARGV: uid, seconds
-- that such blocks are kept, their names separated by spaces, and their contents. Returns 1; 0 if the feed no longer exists.
-- include: now
local feed, unlisted = unpack(KEYS)
local uid, kept_s, names = ARGV[1], tonumber(ARGV[2]), ARGV[3]

local function block_keys(names)
    local keys = {}
    for name in string.gmatch(names, '%S+') do
        keys[#keys + 1] = 'kronos:feed_block:' .. uid .. ':' .. name
    end
    return keys
end

if redis.call('HGET', feed, 'uid') ~= uid then
    return 0
end
local keys = block_keys(names)
if redis.call('EXISTS', unpack(keys)) > 0 then
    return 1 -- sent twice, and perhaps listed by now
end
local noted = redis.pcall('ZADD', unlisted, now_text, names) -- a full Redis refuses it
for _, old in ipairs(redis.call('ZRANGEBYSCORE', unlisted, '-inf', now - kept_s, 'LIMIT', 0, 2)) do
    redis.call('UNLINK', unpack(block_keys(old)))
    redis.call('ZREM', unlisted, old)
end
if type(noted) == 'table' and noted.err then
    return noted
end
local pairs_of_blocks = {}
for position, key in ipairs(keys) do
    pairs_of_blocks[2 * position - 1], pairs_of_blocks[2 * position] = key, ARGV[position + 3]
end
redis.call('MSET', unpack(pairs_of_blocks))
return 1
