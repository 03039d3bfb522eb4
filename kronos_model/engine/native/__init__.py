"""The decode step on a CPU as kernels that Numba compiles.

``compiling`` finds the folder of the compiled kernels and has them compiled; ``locator`` names that folder to
Numba. Kernels are declared with ``cache=bool(numba.config.CACHE_DIR)``. Those that depend on the CPU read
``numba.config.CPU_FEATURES``, such as "+avx512f": an image's builder compiles for other CPUs than its own.
"""
