"""A Redis server and real worker processes that run during a ``with`` block."""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from redis import Redis

from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.redis.routing import live_workers
from kronos_model.processes.children import ChildProcess
from kronos_model.processes.environment import PACKAGE_ROOT

START_TIMEOUT_S: Final = 120
REAL, NULL = "worker.app", "benchmarks.support.null_worker"
"""The Celery apps of workers."""


class Workers:
    """Worker processes that share the machine's cores evenly. All are ready when the block begins.

    Args:
        settings: Environment variables of the workers. No ``KRONOS_`` variable is inherited.
    """

    def __init__(self, app: str, settings: Mapping[str, str], *, num_workers: int = 1) -> None:
        self.redis = LocalRedis()
        self._app = app
        self._settings = dict(settings)
        self._num_workers = num_workers
        self._children: list[ChildProcess] = []

    @property
    def url(self) -> str:
        return self.redis.url

    def cpu_s(self) -> float:
        """Processor time that the worker processes have used so far. Needs ``/proc``."""
        ticks = 0
        for child in self._children:
            fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def __enter__(self) -> Self:
        self.redis.__enter__()
        try:
            for number in range(self._num_workers):
                self._children.append(self._start(f"worker-{number}"))
            self._wait_until_ready()
        except BaseException:  # leave nothing running
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.stop()
        self.redis.__exit__()

    def _start(self, name: str) -> ChildProcess:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("KRONOS_")}
        num_threads = max(1, len(os.sched_getaffinity(0)) // self._num_workers)
        env = inherited | {
            "PYTHONPATH": str(PACKAGE_ROOT),
            "OMP_NUM_THREADS": str(num_threads),
            "KRONOS_REDIS_URL": self.redis.url,
            "KRONOS_DEVICE": "cpu",
            **self._settings,
        }
        command = [sys.executable, "-P", "-m", "celery", "-A", self._app, "worker", "--hostname", f"{name}@b"]
        return ChildProcess(name, command, env=env, grace_s=20)

    def _wait_until_ready(self) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        with Redis.from_url(self.redis.url, decode_responses=True) as redis:
            while sum(worker.is_ready for worker in live_workers(redis)) < self._num_workers:
                for child in self._children:
                    if child.exit_status is not None or time.monotonic() > deadline_s:
                        log = "\n".join(child.tail(50))
                        raise RuntimeError(f"{child.name} did not become ready:\n{log}")
                time.sleep(0.05)
