-- Has a message delivered again: at once and before all others of its list, or after a delay.
--
-- A delayed message stays among the taken ones. The set of its list's delayed ones has its time, and the index too:
-- restore.lua, and workers of release 0.1.0, return it one timeout later if no worker takes it.
-- include: now
-- include: put_back
-- include: may_write
local unacked, index, claims, num_taken = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local tag, delay_s = ARGV[1], tonumber(ARGV[2])

check_may_write(unacked, index, claims)
if delay_s <= 0 then
    put_back(unacked, index, claims, num_taken, tag)
    return
end
local held = redis.call('HGET', unacked, tag)
if held then
    local source = string.match(held, '^[^\n]*')
    local until_text = string.format('%.6f', now + delay_s)
    redis.call('ZADD', 'kronos:delayed:' .. source, until_text, tag)
    redis.call('ZADD', index, until_text, tag)
    local _, job_id = claim_of(claims, tag)
    pcall(note_place, job_id, 'delayed ' .. until_text .. ' ' .. source)
end
