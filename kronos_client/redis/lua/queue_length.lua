-- How many messages wait on each list of a queue, without those of cancelled jobs: a tenth of max_jobs and 64 MiB of these,
-- by their mean size, do not count.
-- include: cancelled
local function lengths_of(lists, max_jobs)
    local max_number, max_bytes = math.ceil(max_jobs / 10), 64 * 1024 * 1024
    local lengths = {}
    for position, list in ipairs(lists) do
        local number, num_bytes = cancelled_on(list)
        local uncounted = math.min(number, max_number)
        if num_bytes > max_bytes then
            uncounted = math.min(uncounted, math.floor(number * max_bytes / num_bytes))
        end
        max_number = max_number - uncounted
        max_bytes = max_bytes - num_bytes * uncounted / math.max(1, number)
        lengths[position] = redis.call('LLEN', list) - uncounted
    end
    return lengths
end
