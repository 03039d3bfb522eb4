-- Redis's clock, Unix time in seconds: as a number, and as a text with all its digits.
local moment = redis.call('TIME')
local now = moment[1] + moment[2] / 1000000
local now_text = string.format('%d.%06d', moment[1], moment[2])
