-- Whether a job is another's than this token's: who holds its lease, or ended it under one.
local function is_anothers(record, token)
    local holder = redis.call('HGET', record, 'lease_token') or redis.call('HGET', record, 'ended_by')
    return holder and holder ~= '' and token ~= '' and holder ~= token
end
