-- The status of a job's outcome; false if there is none. A key of another type is none: the next state replaces it.
local function outcome_of(result)
    if redis.call('TYPE', result).ok ~= 'string' then
        return false
    end
    local is_json, meta = pcall(cjson.decode, redis.call('GET', result))
    local status = is_json and type(meta) == 'table' and meta.status
    return (status == 'SUCCESS' or status == 'FAILURE' or status == 'REVOKED') and status
end

-- Whether the stored state of a job is its outcome.
local function has_outcome(result)
    return outcome_of(result) ~= false
end
