-- Moves the messages of a list's second list back to it, the oldest to the end that is served next, and those that
-- workers have taken from there, delayed ones too, when they come back. Release 0.1.0 does not read second lists.
-- Returns how many. The jobs' records then name the first list, and their places there.
-- include: job_of
-- include: places
-- include: cancelled
local list, large, taken = KEYS[1], KEYS[2], KEYS[3] -- then the hashes of taken messages
local delayed, large_delayed = 'kronos:delayed:' .. list, 'kronos:delayed:' .. large
local num_moved = 0

cancelled_on(list)
for _ = 1, redis.call('LLEN', large) do
    local message = string.gsub(redis.call('LINDEX', large, 0), '^%d+%.%d+\n', '', 1)
    redis.call('RPUSH', list, message)
    local place = redis.call('HINCRBY', taken, list, -1)
    redis.call('LPOP', large)
    redis.call('HINCRBY', taken, large, 1)
    pcall(note_listed, job_of(message), list, place, #message)
    num_moved = num_moved + 1
end
for position = 4, #KEYS do
    for _, tag in ipairs(redis.call('HKEYS', KEYS[position])) do
        local held = redis.call('HGET', KEYS[position], tag)
        if string.sub(held, 1, #large + 1) == large .. '\n' then
            local until_s = redis.call('ZSCORE', large_delayed, tag)
            if until_s then
                redis.call('ZADD', delayed, until_s, tag)
                pcall(note_place, job_of(held), string.format('delayed %.6f %s', until_s, list))
            end
            redis.call('HSET', KEYS[position], tag, list .. string.sub(held, #large + 1))
            num_moved = num_moved + 1
        end
    end
end
redis.call('DEL', large_delayed)
return num_moved
