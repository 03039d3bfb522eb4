-- Whether the stored state of a job is its outcome. A key of another type is none: the next state replaces it.
local function has_outcome(result)
    if redis.call('TYPE', result).ok ~= 'string' then
        return false
    end
    local is_json, meta = pcall(cjson.decode, redis.call('GET', result))
    local status = is_json and type(meta) == 'table' and meta.status
    return status == 'SUCCESS' or status == 'FAILURE' or status == 'REVOKED'
end
