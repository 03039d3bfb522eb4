-- The id of a message's job; '' if unknown. kombu writes it near the message's end, other clients may not.
local function job_of(message)
    local quoted = string.match(string.sub(message, -1024), '"correlation_id": ?(".-[^\\]")')
    local is_json, ids = pcall(cjson.decode, '[' .. (quoted or '') .. ']')
    return is_json and type(ids[1]) == 'string' and ids[1] or ''
end
