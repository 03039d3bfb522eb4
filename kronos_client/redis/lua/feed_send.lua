-- Sends a message that has a worker take the feed's due series; if one waits already, its number of series grows, by which
-- workers count it. A feed's hash holds the message
-- of its jobs, with places for the id, the number of series and the time, the job that waits with the moment it was sent,
-- and the message and list of that. After a while another one is sent: the list may have been deleted.
local resend_s = 60

-- The series that a job holds, with their versions.
local function held_by(taken, job_id)
    local is_read, held = pcall(cjson.decode, redis.call('HGET', taken, job_id) or '{}')
    return is_read and type(held) == 'table' and held or {}
end

local function send_if_due(feed, due, list, uid)
    local num_due = redis.call('ZCARD', due)
    if num_due == 0 then
        return
    end
    local message, max_series, waiting, known, known_list = unpack(
        redis.call('HMGET', feed, 'message', 'max_series', 'waiting', 'sent', 'list'))
    local job_id, sent_at = string.match(waiting or '', '^(%S+) (%S+)$')
    local is_waiting = sent_at and math.abs(now - tonumber(sent_at)) < resend_s
    if not is_waiting then
        job_id, sent_at = string.format('feed-%s-%d', uid, redis.call('HINCRBY', feed, 'num_jobs', 1)), now_text
    end
    local values = {ID = job_id, NUM = string.format('%d', math.min(num_due, max_series)), TIME = sent_at}
    local sent = string.gsub(message, '@(%u+)@', values)
    if is_waiting then
        local place = sent ~= known and redis.call('LPOS', known_list, known)
        if place then
            redis.call('LSET', known_list, place, sent)
            redis.call('HSET', feed, 'sent', sent)
        end
        return
    end
    redis.call('HSET', feed, 'waiting', job_id .. ' ' .. now_text, 'sent', sent, 'list', list)
    redis.call('LPUSH', list, sent)
end
