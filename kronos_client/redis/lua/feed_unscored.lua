-- What is still to be scored of a feed's series: for each the version of its newest outcome, the instant up to which its bars
-- were scored, and all fields: among them the versions whose forecasts are kept for that. Then, on the next line, what
-- jobs note of the series.
local function pending_key(uid, id)
    return 'kronos:feed_pending:' .. uid .. ':' .. id
end

local function unscored(uid, ids)
    local found = {}
    for index, id in ipairs(ids) do
        local key = pending_key(uid, id)
        local known = redis.call('HMGET', key, 'version', 'scored', 'state')
        local fields = table.concat(redis.call('HKEYS', key), ' ')
        found[index] = string.format('%s %s %s\n%s', known[1] or '0', known[2] or '0', fields, known[3] or '')
    end
    return found
end
