-- Whether the stored state of a job is its outcome.
local function has_outcome(result)
    local is_json, meta = pcall(cjson.decode, redis.call('GET', result) or '')
    local status = is_json and type(meta) == 'table' and meta.status
    return status == 'SUCCESS' or status == 'FAILURE' or status == 'REVOKED'
end
