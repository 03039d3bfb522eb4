-- Releases a claim: the job may be begun at once. Nothing changes if the claim is another's.
local record = KEYS[1]
local tag = ARGV[1]
local is_lost = ARGV[2] ~= '' -- whether the attempt ended with its process

if redis.call('HGET', record, 'holder') == tag then
    redis.call('HDEL', record, 'holder', 'renewed_at')
    if is_lost then
        redis.call('HINCRBY', record, 'lost', 1)
    end
end
