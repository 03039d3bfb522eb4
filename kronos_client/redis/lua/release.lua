-- Releases a claim, so that the job may begin again at once. Does nothing if another has the claim.
-- include: now
-- include: attempts
local record = KEYS[1]
local tag, how = ARGV[1], ARGV[2]
local is_lost = ARGV[3] ~= '' -- whether the attempt ended with its process

if redis.call('HGET', record, 'holder') == tag then
    redis.call('HDEL', record, 'holder', 'renewed_at')
    note_attempt(record, now_text, how)
    if is_lost then
        redis.call('HINCRBY', record, 'lost', 1)
    end
end
