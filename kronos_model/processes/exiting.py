"""How a process ends that has PyTorch loaded."""

import atexit
import gc


def collect_nothing_at_exit() -> None:
    """For the main program of a process: leave its memory to the operating system.

    An interpreter that ends looks for garbage several times, and PyTorch's modules are 170,000 objects
    to look through: most of a second. Files and threads end as ever.
    """
    atexit.register(gc.freeze)
