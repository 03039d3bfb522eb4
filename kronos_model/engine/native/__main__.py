"""Compile the kernels into the folder that the environment names to Numba, as a child of ``compiling``.

``python -m kronos_model.engine.native WEIGHTS CACHED [MODULE]`` compiles for one pair of number formats,
``python -m kronos_model.engine.native --warm`` for all pairs and all CPUs with AVX2 or AVX-512, for images.
"""

import importlib
import sys

from kronos_model.engine.native.compiling import STEP, warm


def main(arguments: list[str]) -> None:
    """Run with the arguments of a command line."""
    if arguments == ["--warm"]:
        warm(print)
        return
    weights, cached, module = [*arguments, STEP][:3]
    importlib.import_module(module).compile_for(weights, cached)


if __name__ == "__main__":
    main(sys.argv[1:])
