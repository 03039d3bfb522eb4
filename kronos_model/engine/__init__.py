"""The decoding engine: every forecast, from Python or from a queue, goes through ``Engine``.

``sequence`` and ``scheduler`` decide and import no torch; ``kv_cache``, ``sampling`` and ``runner`` compute
and decide nothing; ``engine`` puts them together, a bar at a time.
"""
