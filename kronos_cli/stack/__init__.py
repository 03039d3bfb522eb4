"""The processes of one machine: Redis, workers, API and Flower, for ``kronos up`` and ``kronos demo``.

services.py         what ``up`` starts; local_redis.py: a Redis of its own; own_commands.py: command lines
processes.py        several children that end together; restarts.py: which of them are started again
"""
