"""Threads that run the kernels together with the thread that asks for it."""

import os
import threading
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronos_model.engine.native import step
from kronos_model.engine.native.layout import JOB, STOP
from kronos_model.engine.native.threads import SYNC_SIZE, prepare


class KernelPool:
    """Runs ``job`` on ``num_threads`` threads: the caller's, and others that sleep between jobs.

    The others start with the first job, so that a process may fork before, and end with this object.

    Args:
        weights: the NumPy type of weights, kept: that of cached keys and values.
    """

    def __init__(self, num_threads: int, weights: type[Any], kept: type[Any]) -> None:
        self._jobs = np.zeros(1, JOB)
        self._types = np.empty(0, weights), np.empty(0, kept)
        self._sync = np.empty(SYNC_SIZE, np.int64)
        self._process = 0
        self._num_threads = num_threads
        self.job = self._jobs[0]

    def run(self, task: int) -> None:
        """Do the task with what ``job`` describes."""
        if self._process != os.getpid():
            self._start()
        self.job["task"] = task
        step.run(self._jobs, 0, self._sync, *self._types)

    def _start(self) -> None:
        self._process = os.getpid()
        self.job["num_threads"] = self._num_threads
        prepare(self._sync)
        arguments = self._jobs, self._sync, *self._types
        for number in range(1, self._num_threads):
            threading.Thread(
                target=_work, args=(number, *arguments), name=f"kronos-kernel-{number}", daemon=True
            ).start()
        if self._num_threads > 1:
            weakref.finalize(self, _stop, self._process, *arguments)


def _work(number: int, jobs: NDArray[Any], sync: NDArray[np.int64], *types: NDArray[Any]) -> None:
    step.run(jobs, number, sync, *types)


def _stop(process: int, jobs: NDArray[Any], sync: NDArray[np.int64], *types: NDArray[Any]) -> None:
    if process == os.getpid():
        jobs["task"] = STOP
        step.run(jobs, 0, sync, *types)
