"""A process of its own for a measurement."""

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context


def own_process() -> ProcessPoolExecutor:
    """A pool of one fresh process, which computes on all cores."""
    os.environ["OMP_NUM_THREADS"] = str(len(os.sched_getaffinity(0)))
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"))
