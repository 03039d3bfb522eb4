"""From the newest token of every path to the next one.

``steps`` has the interface, ``Steps``, and its implementation for any device, ``EagerSteps``; ``sampling``
draws the tokens. ``static_steps`` is that for CUDA, recorded by ``graphs``, with ``triton_kernels``.
Both compute a model by the ``Network`` of ``transformer``; ``native`` has another one.
"""
