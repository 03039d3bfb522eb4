-- Refuses keys that another program wrote, before anything is changed. A script stops in the middle at the first one.
local function expect(kind, ...)
    for _, key in ipairs({...}) do
        local found = redis.call('TYPE', key).ok
        if found ~= kind and found ~= 'none' then
            error('WRONGTYPE of ' .. key .. ': it is a ' .. found .. ', not a ' .. kind, 0)
        end
    end
end
