"""The decoding engine: every forecast, from Python or from a queue, goes through ``Engine``.

``engine``, ``generation``, ``sequence``, ``scheduler``, ``slots`` and ``reads`` decide and import no torch;
the rest computes and decides nothing. ``build`` puts an engine together for a loaded model.
"""
