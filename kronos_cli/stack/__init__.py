"""The processes of one machine: Redis, workers, API and Flower, for ``kronos up`` and ``kronos demo``.

children.py         a child process: named, logged, never orphaned; own_commands.py: its command line
process_stack.py    several that end together; restarts.py: which of them are started again
"""
