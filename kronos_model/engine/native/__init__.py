"""The model in native code for the CPU, compiled by Numba: no PyTorch between the layers.

``network`` is what the engine uses, with ``weights`` and threads (``pool``); ``check`` is its test at load.
``compiling`` compiles into a cache on disk, by ``__main__``; ``locator`` says where that is.
Below, all is compiled: ``step`` goes through the layers with ``products`` and ``attention``; ``layout``
describes what they are given; ``threads`` is how threads wait; ``vectors`` has the instructions. What depends
on the CPU reads ``numba.config.CPU_FEATURES``: an image's builder compiles for other CPUs than its own.
"""
