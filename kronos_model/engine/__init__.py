"""The decoding engine: every forecast, from Python or from a queue, goes through ``Engine``.

A ``generation`` is a submitted series, a ``sequence`` some of its paths. ``engine`` steps: ``scheduling``
decides what a step computes, ``runner`` has it computed by ``prefill`` and ``decoding``, on the layers in
``transformer`` or in ``native``, as ``choice`` says; ``reports`` has what it took. What decides imports no
torch. ``build`` makes an engine.
"""
