-- Takes the next messages of the first list that has one, and notes them as taken. Messages whose delay has passed
-- come first in their list. At most half of a list, since other workers may be idle.
-- Returns the list; the lists that have messages still; and for each message its delivery's tag, its length, and the
-- message, or only its two ends if it is too large. 'full' if Redis is full and this worker holds messages already, so
-- that what is held ends before more begins; false if there is no message. A call that is repeated gives the same
-- messages, because a command may be sent twice.
--
-- A hash holds each message under its delivery's tag, after the list's key and a newline. A sorted set holds
-- the moment of its last renewal, a second hash its timeout and the job's id, and a third the number of messages
-- taken off each list.
-- include: now
-- include: job_of
-- include: put_back
-- include: may_write
local unacked, index, claims, num_taken = KEYS[1], KEYS[2], KEYS[3], KEYS[4] -- then lists, in order of service
local call, timeout_s = ARGV[1], tonumber(ARGV[2]) -- the first names this call, and begins its tags
local max_message_bytes, end_bytes = tonumber(ARGV[3]), tonumber(ARGV[4])
local holds_others = ARGV[5] ~= ''
local max_bytes = tonumber(ARGV[6]) -- of all, but for the first; then for each list: seconds that a job must have
-- waited on it, and how many messages may be taken
local max_due = 100 -- of one list, in one call
local max_tags = 99

local function min_age_s(position)
    return tonumber(ARGV[2 * position - 3])
end

local function tag_of(number)
    return string.format('%s.%02d', call, number)
end

-- The next message of a list that may be taken. Before those of second lists stands the moment at which they came
-- there; one without it came back from a worker, and has waited long enough.
local function next_of(position)
    local message = redis.call('LINDEX', KEYS[position], -1)
    local is_second = string.find(KEYS[position], 'kronos:large:', 1, true) == 1
    local moment = message and is_second and string.match(string.sub(message, 1, 32), '^(%d+%.%d+)\n')
    if not moment then
        return message
    end
    return now >= moment + min_age_s(position) and string.sub(message, #moment + 2)
end

-- A write that needs room, and changes nothing: this list never exists.
local room = redis.pcall('LPUSHX', unacked .. '_room', '')
local is_full = type(room) == 'table' and string.find(room.err or '', 'OOM', 1, true)
if is_full and holds_others then
    return 'full'
end
check_may_write(unacked, index, claims)
local source
local messages, num_bytes = {}, 0

local function add(tag, message)
    local parts = {message}
    if #message > max_message_bytes then
        parts = {string.sub(message, 1, end_bytes), string.sub(message, -end_bytes)}
    end
    messages[#messages + 1] = {tag, #message, unpack(parts)}
    num_bytes = num_bytes + #message
end

-- Raises what Redis answers; the message is then on its list.
local function take(tag, message)
    local job_id = job_of(message)
    local is_moved, problem = pcall(function()
        redis.call('HSET', unacked, tag, source .. '\n' .. message)
        redis.call('HSET', claims, tag, timeout_s .. ' ' .. job_id)
        redis.call('ZADD', index, now, tag)
        -- Last: what Redis refuses before leaves the message on its list. RPOP would copy the message once more.
        redis.call('LTRIM', source, 0, -2)
    end)
    if not is_moved then -- else each take would leave another copy
        redis.call('ZREM', index, tag)
        redis.call('HDEL', claims, tag)
        redis.call('HDEL', unacked, tag)
        error(type(problem) == 'table' and problem.err or tostring(problem), 0)
    end
    pcall(redis.call, 'HINCRBY', num_taken, source, 1)
    pcall(note_held, job_id, tag, now, timeout_s)
end

if redis.call('HEXISTS', unacked, tag_of(1)) == 1 then
    for number = 1, max_tags do
        local held = redis.call('HGET', unacked, tag_of(number))
        if held then
            local newline = string.find(held, '\n', 1, true)
            source = string.sub(held, 1, newline - 1)
            add(tag_of(number), string.sub(held, newline + 1))
        end
    end
else
    for position = 5, #KEYS do
        local delayed = 'kronos:delayed:' .. KEYS[position]
        local due = redis.call('ZRANGEBYSCORE', delayed, '-inf', now, 'LIMIT', 0, max_due)
        for place = #due, 1, -1 do
            put_back(unacked, index, claims, num_taken, due[place])
            redis.call('ZREM', delayed, due[place]) -- also of a message that is no longer taken
        end
    end
    local position = 5
    while position <= #KEYS and not next_of(position) do
        position = position + 1
    end
    source = KEYS[position]
    if not source then
        return false
    end
    local max_messages = math.min(tonumber(ARGV[2 * position - 2]), math.ceil(redis.call('LLEN', source) / 2))
    if is_full then
        max_messages = 1
    end
    for number = 1, max_messages do
        local message = next_of(position)
        if not message or (number > 1 and num_bytes + #message > max_bytes) then
            break
        end
        local is_taken, problem = pcall(take, tag_of(number), message)
        if not is_taken and number == 1 then
            return redis.error_reply(problem)
        elseif not is_taken then
            break
        end
        add(tag_of(number), message)
    end
end
local waiting = {}
for position = 5, #KEYS do
    if redis.call('EXISTS', KEYS[position]) == 1 and (min_age_s(position) == 0 or next_of(position)) then
        waiting[#waiting + 1] = KEYS[position]
    end
end
return {source, waiting, unpack(messages)}
