"""The processes of one machine: Redis, workers, API and Flower, for ``kronos up`` and ``kronos demo``.

services.py         the services of ``up``; local_redis.py: a Redis server; own_commands.py: command lines
processes.py        child processes that end together; restarts.py: which of them are restarted
"""
