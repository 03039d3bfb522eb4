"""From the newest token of every path to the next one.

``steps`` has the interface, ``Steps``, and its implementation for any device, ``EagerSteps``; ``sampling``
draws the tokens. ``static_steps`` is that for CUDA, of ``static_inputs``, recorded by ``graphs``, with
``triton_kernels``. Another one is one more class like these, which ``runner`` chooses by device.
"""
