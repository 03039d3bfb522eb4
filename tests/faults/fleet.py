"""Workers that a test starts, kills and stops, and their last metrics."""

import contextlib
import os
import signal
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.faults.redis_under_fault import RedisUnderFault
from tests.integration.conftest import PACED, WorkerUnderTest
from tests.ports import free_port
from tests.processes import in_sessions, marked
from tests.waiting import WAIT_S

MARK = "TEST_FAULTS"
REPEATED = "kronos_jobs_repeated_total"
BARS = "kronos_bars_generated_total"


class Worker(WorkerUnderTest):
    """A worker with metrics. The last reading is kept for a killed worker."""

    port: int
    num_repeated = 0.0

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def read_metrics(self) -> dict[str, float]:
        """Samples by name and labels; empty if the worker does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
                lines = answer.read().decode().splitlines()
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return {}
        samples = {
            name: float(value)
            for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))
        }
        self.num_repeated = samples.get(REPEATED, self.num_repeated)
        return samples

    def kill(self) -> None:
        """SIGKILL, to this process alone."""
        self.read_metrics()
        self.process.kill()
        self.process.wait(WAIT_S)

    def end(self, *signals: signal.Signals, timeout_s: float = WAIT_S, pause_s: float = 0.3) -> int:
        """Send these signals one after the other. Returns the exit status."""
        self.read_metrics()
        for number in signals or (signal.SIGTERM,):
            if self.is_running:
                self.process.send_signal(number)
                time.sleep(pause_s)
        return self.process.wait(timeout_s)


class Fleet:
    """All workers of one test. Every process that comes from them carries the fleet's mark."""

    def __init__(self, redis: RedisUnderFault, folder: Path, **settings: str) -> None:
        self.workers: list[Worker] = []
        self._redis = redis
        self._folder = folder
        self._settings = settings

    @property
    def mark(self) -> dict[str, str]:
        """Variables for other processes that the test starts."""
        return {MARK: str(self._folder)}

    def begin(self, *arguments: str, command: tuple[str, ...] = (), **settings: str) -> Worker:
        """Start one, and do not wait until it is ready. ``KRONOS_REDIS_URL`` may lead through a proxy."""
        port = free_port()
        settings = (
            {"KRONOS_METRICS_PORT": str(port), "OMP_NUM_THREADS": "1", "PACE_S": "0.02"}
            | self._settings
            | self.mark
            | settings
        )
        command = command or ("celery", "-A", "worker.app", "worker", "--loglevel", "INFO", *PACED)
        log = self._folder / f"{len(self.workers)}-{os.getpid()}.log"
        worker = Worker(self._redis, log, [*command, *arguments], settings)  # type: ignore[arg-type]
        worker.port = port
        self.workers.append(worker)
        return worker

    def start(self, *arguments: str, **settings: str) -> Worker:
        """Start one and wait until it is ready."""
        worker = self.begin(*arguments, **settings)
        worker.wait_until_ready()
        return worker

    @property
    def running(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.is_running]

    def ended_without(self, reason: str) -> list[Worker]:
        """Workers that were not killed and have ended without this in their log."""
        ended = [worker for worker in self.workers if worker.process.poll() not in (None, -signal.SIGKILL)]
        return [worker for worker in ended if reason not in worker.log.read_text()]

    def num_repeated(self) -> float:
        """Jobs that were computed twice, by the metrics of workers that lived long enough."""
        for worker in self.running:
            assert REPEATED in worker.read_metrics(), f"{worker.node} has no metrics"
        return sum(worker.num_repeated for worker in self.workers)

    def num_bars(self) -> float:
        """Bars that all workers have generated, over all paths; those of killed ones are not known."""
        return sum(
            value
            for worker in self.running
            for name, value in worker.read_metrics().items()
            if name.startswith(BARS)
        )

    def logs(self) -> str:
        """The last lines of each, for a test that fails."""
        return "\n".join(
            f"--- {worker.log.stem} ({worker.process.poll()})\n"
            + "\n".join(line[:300] for line in worker.log.read_text().splitlines()[-100:])
            for worker in self.workers
        )

    def stop(self) -> None:
        """Stop all workers, and check that none of their processes is left."""
        for worker in self.running:
            worker.read_metrics()
            worker.process.send_signal(signal.SIGTERM)
        statuses = {}
        for worker in self.workers:
            with contextlib.suppress(Exception):  # the assertion below says which did not end
                statuses[worker.log.stem] = worker.process.wait(WAIT_S)
        hung = [w for w in self.workers if w.is_running or "the shutdown hangs" in w.log.read_text()]
        try:
            assert hung == [], f"did not end on SIGTERM\n{self.logs()}"
            self.assert_no_orphans()
        finally:
            self.end_all()

    def assert_no_orphans(self) -> None:
        """No process of the fleet's is left; those of a killed worker have a moment to notice."""
        deadline = time.monotonic() + WAIT_S
        while (left := self._processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        if left:
            pytest.fail(f"left running: {left}")

    def _processes(self) -> dict[int, str]:
        """All processes of the fleet: forks are found by the session, and new ones by the mark."""
        leaders = {worker.process.pid for worker in self.workers}
        return in_sessions(leaders) | marked(MARK, str(self._folder))

    def end_all(self) -> None:
        """Kill every process of the fleet: this test started all of them."""
        for pid in self._processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for worker in self.workers:
            worker.process.wait(WAIT_S)
