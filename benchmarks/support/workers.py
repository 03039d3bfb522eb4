"""A Redis server and real worker processes that run during a ``with`` block."""

import os
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Final, Self

import psutil
from redis import Redis

from benchmarks.support.round_trips import RoundTrips
from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.contract.names import CPU_QUEUE
from kronos_client.redis.routing import live_workers
from kronos_model.checkpoints.names import BUNDLED_MODEL
from kronos_model.processes.children import ChildProcess, module_command, own_environment

START_TIMEOUT_S: Final = 120
REAL, NULL, BARE, OBSERVED = (
    "worker.app",
    *(f"benchmarks.support.{name}_worker" for name in ("null", "bare", "observed")),
)
"""The Celery apps of workers."""
TINY: Final = {"KRONOS_MODEL": BUNDLED_MODEL, "KRONOS_MAX_CONTEXT": "512"}
"""Settings of a worker with the bundled model."""
BARE_POOL: Final = ("--pool", "threads", "--concurrency", "8", "--queues", CPU_QUEUE)
BARE_READY_KEY: Final = "bare_workers_ready"


class Workers:
    """Worker processes that share the machine's cores evenly. All are ready when the block begins.

    Args:
        settings: Environment variables of the workers. No ``KRONOS_`` variable is inherited.
        num_cores: Cores that the workers are pinned to; by default they may use all.

    Attributes:
        round_trips: Counts those of the workers to Redis, if ``counts`` is set.
    """

    round_trips: RoundTrips

    def __init__(
        self, app: str, settings: Mapping[str, str], *, num_workers: int = 1, num_cores: int | None = None,
        counts: bool = False,
    ) -> None:  # fmt: skip
        self._cores = sorted(os.sched_getaffinity(0))[:num_cores]
        num_threads = max(1, len(self._cores) // num_workers)
        self._settings = {"OMP_NUM_THREADS": str(num_threads), "KRONOS_DEVICE": "cpu", **settings}
        self._app = app
        self._num_workers = num_workers
        self._counts = counts
        self._children: list[ChildProcess] = []
        self.url = ""

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self._children]

    def cpu_s(self) -> float:
        """Processor time that the worker processes have used so far."""
        used = [psutil.Process(pid).cpu_times() for pid in self.pids]
        return sum(times.user + times.system for times in used)

    def __enter__(self) -> Self:
        with ExitStack() as exits:
            workers_url = self.url = exits.enter_context(LocalRedis()).url
            if self._counts:
                self.round_trips = exits.enter_context(RoundTrips(self.url))
                workers_url = self.round_trips.url
            for number in range(self._num_workers):
                self._children.append(self._start(f"worker-{number}", workers_url))
                exits.callback(self._children[-1].stop)
            self._wait_until_ready()
            self._exits = exits.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def _start(self, name: str, url: str) -> ChildProcess:
        inherited = {key: value for key, value in own_environment().items() if not key.startswith("KRONOS_")}
        env = inherited | {"KRONOS_REDIS_URL": url, **self._settings}
        pool = BARE_POOL if self._app == BARE else ()
        command = module_command("celery", "-A", self._app, "worker", "--hostname", f"{name}@b", *pool)
        return ChildProcess(name, [*pinned(self._cores), *command], env=env, grace_s=20)

    def _wait_until_ready(self) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        with Redis.from_url(self.url, decode_responses=True) as redis:
            while self._num_ready(redis) < self._num_workers:
                for child in self._children:
                    if child.exit_status is not None or time.monotonic() > deadline_s:
                        log = "\n".join(child.tail(50))
                        raise RuntimeError(f"{child.name} did not become ready:\n{log}")
                time.sleep(0.05)

    def _num_ready(self, redis: Redis) -> int:
        if self._app == BARE:
            return int(redis.get(BARE_READY_KEY) or 0)  # type: ignore[arg-type]
        return sum(worker.is_ready for worker in live_workers(redis))


def pinned(cores: Iterable[int]) -> list[str]:
    """What stands before a command so that it may use only these cores."""
    return ["taskset", "--cpu-list", ",".join(map(str, cores))]
