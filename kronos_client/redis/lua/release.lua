-- Releases a lease: whoever begins the job next need not wait. Nothing changes if the lease is another's.
local record = KEYS[1]
local token = ARGV[1]
local is_lost = ARGV[2] ~= '' -- whether the attempt ended with its process

if redis.call('HGET', record, 'lease_token') == token then
    redis.call('HDEL', record, 'lease_token', 'lease_until', 'leased_at')
    if is_lost then
        redis.call('HINCRBY', record, 'lost', 1)
    end
end
