-- A claim is a worker's hold on a job. The job's record names the delivery that has it, by its tag, as its
-- holder. The claim lives as long as that delivery is listed as taken: until it is acknowledged, requeued,
-- or put back because it was not renewed.
local function is_anothers(record, tag)
    local holder = redis.call('HGET', record, 'holder') or redis.call('HGET', record, 'ended_by')
    return holder and holder ~= '' and tag ~= '' and holder ~= tag
end
