-- Moves up the messages of several lists that have waited long enough, unless a worker has just done so.
-- Returns how many moved.
--
-- A note holds a moment, and the list's length and count of taken messages at that moment. The notes start
-- again if Redis's clock went back, or if messages vanished uncounted (a queue was purged).
-- include: now
local swept, taken = KEYS[1], KEYS[2] -- then for each list: itself, its notes, its destination
local max_wait_s, throttle_s = ARGV[1], ARGV[2]
local max_messages = tonumber(ARGV[3]) -- per list
local max_bytes = tonumber(ARGV[4]) -- for all lists

if not redis.call('SET', swept, '1', 'PX', math.ceil(throttle_s * 1000), 'NX') then
    return 0
end
local waited_since = now - max_wait_s
local num_moved, num_bytes = 0, 0

local function note_at(notes, position)
    local note = redis.call('LINDEX', notes, position)
    if note then
        local at, length, num_taken = string.match(note, '(%S+) (%S+) (%S+)')
        return {at = tonumber(at), length = tonumber(length), num_taken = tonumber(num_taken)}
    end
end

for position = 3, #KEYS, 3 do
    local source, notes, destination = KEYS[position], KEYS[position + 1], KEYS[position + 2]
    local length = redis.call('LLEN', source)
    local num_taken = tonumber(redis.call('HGET', taken, source) or 0)
    local newest = note_at(notes, -1)
    if newest and (newest.at > now or length + num_taken < newest.length + newest.num_taken) then
        redis.call('DEL', notes)
        newest = nil
    end
    local following = note_at(notes, 1)
    while following and following.at <= waited_since do
        redis.call('LPOP', notes)
        following = note_at(notes, 1)
    end
    local oldest = note_at(notes, 0)
    if oldest and oldest.at <= waited_since then
        local num_old = math.min(oldest.length - (num_taken - oldest.num_taken), length, max_messages)
        while num_old > 0 and num_bytes < max_bytes do
            num_bytes = num_bytes + #redis.call('LMOVE', source, destination, 'RIGHT', 'LEFT')
            num_taken = redis.call('HINCRBY', taken, source, 1)
            length = length - 1
            num_old = num_old - 1
            num_moved = num_moved + 1
        end
    end
    if not newest or newest.length ~= length or newest.num_taken ~= num_taken then
        redis.call('RPUSH', notes, string.format('%.6f %d %d', now, length, num_taken))
    end
end
return num_moved
