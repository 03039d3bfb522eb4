"""The Lua scripts behind ``jobs.py``: one for each step of a job's life, run by Redis as a whole."""

from typing import Final

# KEYS: record, wish to cancel. ARGV: fingerprint, seconds that results live, seconds that the record lives.
# Gives what holds the id otherwise, else the moment and whether the outcome is still kept.
CLAIM: Final = """
local moment = redis.call('TIME')
local now = string.format('%d.%06d', moment[1], moment[2])
if redis.call('EXISTS', KEYS[1]) == 0 then
    redis.call('DEL', KEYS[2]) -- a wish to cancel what was not there
end
if redis.call('HSETNX', KEYS[1], 'fingerprint', ARGV[1]) == 0 and
        redis.call('HGET', KEYS[1], 'fingerprint') ~= ARGV[1] then
    return {now, 'conflict'}
end
local ended_at = redis.call('HGET', KEYS[1], 'ended_at')
if ended_at and now - ended_at <= tonumber(ARGV[2]) then
    return {now, 'kept'}
end
if ended_at then
    redis.call('HDEL', KEYS[1], 'ended_at', 'ended_by', 'received_at', 'leased_s', 'lost', 'lost_alone',
        'put_off')
    redis.call('DEL', KEYS[2])
end
redis.call('EXPIRE', KEYS[1], ARGV[3])
return {now, 'claimed'}
"""

_HAS_OUTCOME: Final = """
local function has_outcome(key)
    local is_json, meta = pcall(cjson.decode, redis.call('GET', key) or '')
    local status = is_json and type(meta) == 'table' and meta.status
    return status == 'SUCCESS' or status == 'FAILURE' or status == 'REVOKED'
end
"""

# Whether a job is another's than this token's: who holds its lease, or ended it under one.
_IS_ANOTHERS: Final = """
local function is_anothers(key, token)
    local holder = redis.call('HGET', key, 'lease_token') or redis.call('HGET', key, 'ended_by')
    return holder and holder ~= '' and token ~= '' and holder ~= token
end
"""

# KEYS: result, record, wish to cancel. ARGV: the state to store, seconds that it lives, and the record, the
# lease's token and its seconds; both empty for a job that needs none. While another holds the lease nothing
# is stored; one that ran out and was never released was lost with its holder. Last the fingerprint, empty
# where it does not matter: what has the id of a job under way and another fingerprint is no delivery of it.
BEGIN: Final = f"""{_HAS_OUTCOME}
if has_outcome(KEYS[1]) then
    return false
end
local moment = redis.call('TIME')
local now = string.format('%d.%06d', moment[1], moment[2])
if redis.call('HEXISTS', KEYS[2], 'ended_at') == 1 then -- its outcome is no longer kept: it begins anew
    redis.call('HDEL', KEYS[2], 'ended_at', 'ended_by', 'received_at', 'leased_s', 'fingerprint', 'lost',
        'lost_alone', 'put_off')
    redis.call('DEL', KEYS[3])
end
if ARGV[6] ~= '' and redis.call('HSETNX', KEYS[2], 'fingerprint', ARGV[6]) == 0 and
        redis.call('HGET', KEYS[2], 'fingerprint') ~= ARGV[6] then
    return 'conflict'
end
redis.call('HSETNX', KEYS[2], 'received_at', now)
redis.call('EXPIRE', KEYS[2], ARGV[3])
local held_s = 0
if ARGV[4] ~= '' then
    local holder = redis.call('HGET', KEYS[2], 'lease_token')
    if holder and holder ~= ARGV[4] then
        held_s = math.max(0, tonumber(redis.call('HGET', KEYS[2], 'lease_until')) - now)
        if tonumber(redis.call('HGET', KEYS[2], 'leased_at') or 0) > tonumber(now) then
            held_s = math.min(held_s, tonumber(ARGV[5])) -- Redis's clock went back
        end
        if held_s == 0 then
            redis.call('HINCRBY', KEYS[2], 'lost', 1)
        end
    end
    if held_s == 0 then
        local ends_at = string.format('%.6f', now + ARGV[5])
        redis.call('HSET', KEYS[2], 'lease_token', ARGV[4], 'lease_until', ends_at, 'leased_at', now)
    end
end
if held_s == 0 then
    redis.call('SETEX', KEYS[1], ARGV[2], ARGV[1])
    redis.call('PUBLISH', KEYS[1], ARGV[1])
end
local known = redis.call('HMGET', KEYS[2], 'received_at', 'leased_s', 'lost', 'lost_alone')
return {{now, known[1], redis.call('EXISTS', KEYS[3]), string.format('%.6f', held_s), known[2] or '0',
    known[3] or '0', known[4] or '0'}}
"""

# KEYS and the first three of ARGV as above, the record's life being empty for a state that is no outcome;
# then the token of the lease that it is stored under, empty for none, and anything for an outcome that ends
# the job whoever has its lease. A record that is not what it should be must not keep the outcome from being
# stored. Gives 1 where it counts, -1 where the job is another's, who was given it meanwhile.
STORE: Final = f"""{_HAS_OUTCOME}{_IS_ANOTHERS}
local is_record = redis.call('TYPE', KEYS[2]).ok == 'hash'
if has_outcome(KEYS[1]) then
    return is_record and is_anothers(KEYS[2], ARGV[4]) and -1 or 0
end
local moment = redis.call('TIME')
local now = string.format('%d.%06d', moment[1], moment[2])
if is_record then
    local holder = redis.call('HGET', KEYS[2], 'lease_token')
    if holder and holder ~= ARGV[4] and ARGV[5] == '' then
        if ARGV[4] ~= '' then
            return -1
        end
        if tonumber(redis.call('HGET', KEYS[2], 'lease_until')) > tonumber(now) then
            return 0
        end
    end
end
redis.call('SETEX', KEYS[1], ARGV[2], ARGV[1])
if ARGV[3] ~= '' then
    if is_record then
        redis.call('HSET', KEYS[2], 'ended_at', now, 'ended_by', ARGV[4])
        redis.call('HDEL', KEYS[2], 'lease_token', 'lease_until', 'leased_at')
        redis.call('EXPIRE', KEYS[2], ARGV[3])
    end
    redis.call('DEL', KEYS[3])
end
redis.call('PUBLISH', KEYS[1], ARGV[1])
return 1
"""

# KEYS: records. ARGV: seconds of the lease, seconds that a record lives, then each one's token. A record
# that Redis lost is made again: nobody else holds the lease then. Gives for each 1 where it was renewed, 0
# where the job has ended, -1 where it is another's.
RENEW: Final = f"""{_IS_ANOTHERS}
local moment = redis.call('TIME')
local now = string.format('%d.%06d', moment[1], moment[2])
local ends_at = string.format('%.6f', now + ARGV[1])
local answers = {{}}
for index, key in ipairs(KEYS) do
    local token = ARGV[index + 2]
    if is_anothers(key, token) then
        answers[index] = -1
    elseif redis.call('HEXISTS', key, 'ended_at') == 1 then
        answers[index] = 0
    else
        local since = now - (redis.call('HGET', key, 'leased_at') or now)
        redis.call('HINCRBYFLOAT', key, 'leased_s', string.format('%.6f', math.max(0, since)))
        redis.call('HSET', key, 'lease_token', token, 'lease_until', ends_at, 'leased_at', now)
        redis.call('EXPIRE', key, ARGV[2])
        answers[index] = 1
    end
end
return answers
"""

# KEYS: record. ARGV: token, and anything where the job was lost with its holder.
RELEASE: Final = """
if redis.call('HGET', KEYS[1], 'lease_token') == ARGV[1] then
    redis.call('HDEL', KEYS[1], 'lease_token', 'lease_until', 'leased_at')
    if ARGV[2] ~= '' then
        redis.call('HINCRBY', KEYS[1], 'lost', 1)
    end
end
"""

# KEYS: record. ARGV: token, what to count. Gives how often that was; false where the job is not the token's.
COUNT: Final = """
if redis.call('HGET', KEYS[1], 'lease_token') ~= ARGV[1] then
    return false
end
return redis.call('HINCRBY', KEYS[1], ARGV[2], 1)
"""

# KEYS: record, wish to cancel. ARGV: seconds that the wish lives. Gives 0 where the job has ended: who asks
# for that just as it ends, or whose connection sends it again then, leaves nothing behind.
CANCEL: Final = """
if redis.call('HEXISTS', KEYS[1], 'ended_at') == 1 then
    return 0
end
redis.call('SET', KEYS[2], '1', 'EX', ARGV[1])
return 1
"""
