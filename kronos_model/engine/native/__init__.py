"""The decode step on a CPU as kernels that Numba compiles.

``compiling`` finds the folder of the compiled kernels and has them compiled; ``locator`` names that folder to
Numba.
"""
