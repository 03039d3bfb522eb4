"""From the newest token of every path to the next one.

- ``steps``: the interface ``Steps``, and ``EagerSteps``, which runs on any device.
- ``sampling``: draws tokens from logits; ``noise``: the random numbers of each series.
- ``static_steps``: steps of fixed shapes for CUDA.
- ``graphs``: records these steps, and replays them.
- ``triton_kernels``: draws tokens and reads the cache in one kernel each, on CUDA.

Both kinds of steps compute the model by a ``Network``, that of ``transformer`` or of ``native``.
"""
