-- Moves the messages of a list's second list back to it, the oldest to the end that is served next, and those that
-- workers have taken from there when they come back. Release 0.1.0 does not read second lists. Returns how many.
-- include: job_of
-- include: places
local list, large, taken = KEYS[1], KEYS[2], KEYS[3] -- then the hashes of taken messages
local num_moved = 0

for _ = 1, redis.call('LLEN', large) do
    local message = string.gsub(redis.call('LINDEX', large, 0), '^%d+%.%d+\n', '', 1)
    redis.call('RPUSH', list, message)
    redis.call('HINCRBY', taken, list, -1)
    redis.call('LPOP', large)
    redis.call('HINCRBY', taken, large, 1)
    pcall(note_place, job_of(message), 'list ' .. list)
    num_moved = num_moved + 1
end
for position = 4, #KEYS do
    for _, tag in ipairs(redis.call('HKEYS', KEYS[position])) do
        local held = redis.call('HGET', KEYS[position], tag)
        if string.sub(held, 1, #large + 1) == large .. '\n' then
            redis.call('HSET', KEYS[position], tag, list .. string.sub(held, #large + 1))
            num_moved = num_moved + 1
        end
    end
end
return num_moved
