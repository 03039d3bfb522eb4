"""The decoding engine: every forecast, from Python or from a queue, goes through ``Engine``.

``engine``, ``generation``, ``sequence`` and ``scheduling`` decide and import no torch; the other modules
compute and decide nothing. ``build`` makes an engine for a loaded model.
"""
