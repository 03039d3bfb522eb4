-- Sends a message that has a worker take the feed's due series, unless one waits already. A feed's hash holds the message
-- of its jobs, with places for the id, the number of series and the time, the job that waits with the moment it was sent,
-- and the message and list of that. After a while another one is sent: the list may have been deleted.
local resend_s = 60

local function send_if_due(feed, due, list, uid)
    local num_due = redis.call('ZCARD', due)
    local message, max_series, waiting = unpack(redis.call('HMGET', feed, 'message', 'max_series', 'waiting'))
    local sent_at = tonumber(string.match(waiting or '', '%S+$'))
    if num_due == 0 or (sent_at and math.abs(now - sent_at) < resend_s) then
        return
    end
    local job_id = string.format('feed-%s-%d', uid, redis.call('HINCRBY', feed, 'num_jobs', 1))
    local values = {ID = job_id, NUM = string.format('%d', math.min(num_due, max_series)), TIME = now_text}
    local sent = string.gsub(message, '@(%u+)@', values)
    redis.call('HSET', feed, 'waiting', job_id .. ' ' .. now_text, 'sent', sent, 'list', list)
    redis.call('LPUSH', list, sent)
end
