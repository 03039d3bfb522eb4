-- Releases a claim, so that the job may begin again at once. Does nothing if another has the claim.
local record = KEYS[1]
local tag = ARGV[1]
local is_lost = ARGV[2] ~= '' -- whether the attempt ended with its process

if redis.call('HGET', record, 'holder') == tag then
    redis.call('HDEL', record, 'holder', 'renewed_at')
    if is_lost then
        redis.call('HINCRBY', record, 'lost', 1)
    end
end
