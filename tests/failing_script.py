"""A script of Redis in which one command fails."""

from typing import Any

from redis import Redis

PREFIX = """
local real, num_left = redis, tonumber(table.remove(ARGV))
local redis = setmetatable({}, {__index = real})
redis.call = function(...)
    num_left = num_left - 1
    if num_left == 0 then
        error('ERR injected', 0)
    end
    return real.call(...)
end
"""


class FailingScript:
    """A script whose ``at_call``-th command fails in each run, counted from 1; none at 0."""

    def __init__(self, redis: Redis, text: str) -> None:
        self.at_call = 0
        self._script = redis.register_script(PREFIX + text)

    def __call__(self, keys: Any, args: Any, client: Any = None) -> Any:
        return self._script(keys=keys, args=[*args, self.at_call], client=client)
