"""A faster exit for processes that have loaded PyTorch."""

import atexit
import gc


def collect_nothing_at_exit() -> None:
    """Skip garbage collection at the end of this process; the operating system frees its memory.

    At exit the interpreter collects garbage several times. PyTorch's modules are 170,000 objects, so that
    takes most of a second. Files and threads end as usual. Only for the main program of a process.
    """
    atexit.register(gc.freeze)
