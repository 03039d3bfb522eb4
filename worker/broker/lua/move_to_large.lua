-- Moves a taken message to the second list of its list, behind the others there, with the moment before it: its job is
-- too large for this worker now. Written before it is removed: if Redis refuses a command in between, the message is
-- there twice, not lost.
-- include: now
-- include: places
-- include: cancelled
-- include: may_write
local unacked, index, claims, num_taken = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local tag, prefix = ARGV[1], ARGV[2]

check_may_write(unacked, index, claims)
local held = redis.call('HGET', unacked, tag)
if held then
    local newline = string.find(held, '\n', 1, true)
    local list = prefix .. string.sub(held, 1, newline - 1)
    local _, job_id = claim_of(claims, tag)
    local place = redis.call('LLEN', list) + (redis.call('HGET', num_taken, list) or 0) -- as in admit.lua
    redis.call('LPUSH', list, now_text .. string.sub(held, newline))
    pcall(note_listed, job_id, list, place, #held - newline)
end
redis.call('ZREM', index, tag)
redis.call('HDEL', claims, tag)
redis.call('HDEL', unacked, tag)
