"""Threads that run the kernels together with the thread that asks for it."""

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronos_model.engine.native import step
from kronos_model.engine.native.layout import JOB, STOP
from kronos_model.engine.native.threads import SYNC_SIZE, prepare


class KernelPool:
    """Runs ``job`` on the caller's thread and others, which sleep between jobs and end with this object.

    Args:
        weights: the NumPy type of weights, kept: that of cached keys and values.
        scratch_floats: the room that each thread needs.
    """

    def __init__(self, weights: type[Any], kept: type[Any], scratch_floats: int) -> None:
        self._jobs = np.zeros(1, JOB)
        self._types = np.empty(0, weights), np.empty(0, kept)
        self._scratch = np.empty(0, np.float32)
        self._process, self._sync = 0, np.empty(0, np.int64)
        self._end: Callable[[], object] = lambda: None
        self.job = self._jobs[0]
        self.job["scratch_floats"] = scratch_floats

    def run(self, task: int, num_threads: int) -> None:
        """Do the task with what ``job`` describes."""
        if (self._process, int(self.job["num_threads"])) != (os.getpid(), num_threads):
            self._start(num_threads)  # also in a child of the process that started them
        self.job["task"] = task
        step.run(self._jobs, 0, self._sync, *self._types)

    def _start(self, num_threads: int) -> None:
        self._end()
        self._jobs = self._jobs.copy()  # threads that end still read theirs
        self.job = self._jobs[0]
        self._process = os.getpid()
        self._scratch = np.empty(num_threads * int(self.job["scratch_floats"]), np.float32)
        self.job["num_threads"], self.job["scratch"] = num_threads, self._scratch.ctypes.data
        self._sync = np.empty(SYNC_SIZE, np.int64)
        prepare(self._sync)
        arguments = self._jobs, self._sync, *self._types
        for number in range(1, num_threads):
            name = f"kronos-kernel-{number}"
            threading.Thread(target=_work, args=(number, *arguments), name=name, daemon=True).start()
        self._end = weakref.finalize(self, _end, self._process, *arguments)


def _work(number: int, jobs: NDArray[Any], sync: NDArray[np.int64], *types: NDArray[Any]) -> None:
    step.run(jobs, number, sync, *types)


def _end(process: int, jobs: NDArray[Any], sync: NDArray[np.int64], *types: NDArray[Any]) -> None:
    """Let the other threads end. After a fork there are none."""
    if process == os.getpid():
        jobs["task"] = STOP
        step.run(jobs, 0, sync, *types)
