"""The processes of one machine: Redis, workers, API and Flower, for ``kronos up`` and ``kronos demo``."""
