-- Writes a worker's announcement, and notes the worker in the index, by Redis's clock: a machine's own may jump.
-- With the index, readers need not scan all keys of a database that may be shared. It may name workers that are
-- gone: the key decides.
-- Returns the announcement that was there.
-- include: now
local announcement, index = KEYS[1], KEYS[2]
local node, status, ttl_s = ARGV[1], ARGV[2], ARGV[3]
local listed_s = 24 * 3600

redis.call('EXPIRE', announcement, ttl_s) -- needs no room: a full Redis refuses only a script's first write
local before = redis.call('MGET', announcement)[1] -- GET would fail if another app's key has another type
redis.call('SET', announcement, status, 'EX', ttl_s)
redis.call('ZADD', index, now, node)
redis.call('ZREMRANGEBYSCORE', index, '-inf', now - listed_s)
return before
