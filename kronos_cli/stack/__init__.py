"""The processes of one machine: Redis, workers, API and Flower, for ``kronos up`` and ``kronos demo``.

ports.py        finds free TCP ports
local_redis.py  a Redis server from PATH or from a pip package
services.py     the services' command lines and variables
processes.py    runs them; they end together
restarts.py     starts crashed ones again; the workers of ``kronos worker --processes``
"""
