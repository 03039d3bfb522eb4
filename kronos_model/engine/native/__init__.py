"""The model in native code for the CPU, compiled by Numba: no PyTorch between the layers.

``network`` is what the engine uses; ``weights`` and ``pool`` are its weights and threads; ``compiling`` keeps
compiled code. Below, all is compiled: ``step`` goes through the layers with ``products`` and ``attention``;
``layout`` describes what they are given; ``threads`` is how threads wait; ``vectors`` has the instructions.
Only ``network`` and ``compiling`` are imported from outside.
"""
