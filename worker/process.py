"""What a worker's process is in both roles: its name, claims, metrics, state and announcement. No torch."""

import logging
import math
import os
import platform
import re
import time
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, Self, cast

from kronos_client import __version__
from kronos_client.contract.names import TASK_ROLES
from kronos_client.contract.worker_status import AnyWorkerStatus, State
from kronos_client.redis.job_store import JobStore
from kronos_client.redis.queues import DELIVERY_KEYS
from worker.broker.claims import Claims
from worker.broker.connecting import redis_of
from worker.broker.outcomes import Outcomes, store_health
from worker.broker.result_backend import CodedRedisBackend
from worker.monitoring.heartbeat import Heartbeat
from worker.monitoring.job_log import log_job
from worker.monitoring.metrics import JobMetrics
from worker.settings import WorkerSettings

if TYPE_CHECKING:
    from worker.inference.capacity import Capacity

log = logging.getLogger(__name__)

DEFAULT_MODEL: Final = "kronos-small"
MAX_MODEL_CHARS: Final = 40
"""Length of the model's part of a node name."""
RETRY_DELAY_S: Final = 1.0
"""Without this delay, a job that cannot run now would come back at once, again and again."""


class RetryLater(Exception):
    """The job is not at fault, and has no outcome: this worker or another one goes on with it later."""

    def __init__(self, reason: str, delay_s: float = 0.0) -> None:
        super().__init__(reason)
        self.delay_s = delay_s


class Jobs:
    """The jobs that no thread of Celery's pool computes. Here there are none."""

    busy_s: float | None = None
    """Seconds in which there was one; None if nobody measures them."""

    def __len__(self) -> int:
        return 0

    def run(self) -> None:
        """Go on with them as far as possible, without waiting."""


class WorkerProcess:
    """A process that runs tasks. A subclass for each role computes their jobs."""

    device: object
    device_warning: str | None
    capacity: "Capacity"
    metrics: JobMetrics

    def __init__(self, settings: WorkerSettings, node: str, metrics: JobMetrics) -> None:
        self.settings = settings
        self.node = node
        self.state: State = "loading"
        self.jobs = Jobs()
        self.is_dead = False
        self.hand_back_at = math.inf  # by time.monotonic: running forecasts go back to the queue
        self.redis = redis_of(settings.redis_url.get_secret_value())
        keys = DELIVERY_KEYS[settings.role]
        given = (settings.result_ttl_s, keys, self._note_repeated, settings.max_dead_messages)
        self.job_store = JobStore(self.redis, *given)
        self.outcomes = Outcomes(self.job_store)
        self.outcomes.on_end = self.report_end
        self.outcomes.on_repeated = self._note_repeated
        self.claims = Claims(self.job_store, float(settings.visibility_timeout_s))
        self.metrics = metrics
        self.metrics.outcomes_kept.set_function(lambda: self.outcomes.num_kept_bytes)
        self._started = time.time()
        self._heartbeat = Heartbeat(self.redis, node, self.status, self._is_alive)

    @classmethod
    def current(cls) -> Self:
        """This worker's process, which must be of this class."""
        if current.process is None:
            raise RuntimeError("no model is loaded in this process; start it as a Celery worker")
        return cast(Self, current.process)

    @property
    def queue(self) -> str:
        """The queue that the worker takes jobs from."""
        return self.settings.queue_names.on_device(str(self.device), self.settings.role)

    def start(self) -> None:
        """Announce the worker."""
        CodedRedisBackend.runs_here = staticmethod(self.claims.has)
        self._heartbeat.start()

    def serve_metrics(self, *, model: str = "", dtype: str = "", engine: str = "") -> None:
        """Describe the process in its metrics, and serve them if a port is set."""
        facts = {"model": model, "queue": self.queue, "dtype": dtype, "engine": engine}
        self.metrics.describe(device=str(self.device), **facts)
        if self.settings.metrics_port is not None:
            self.metrics.serve(self.settings.metrics_host, self.settings.metrics_port)

    def ready(self) -> None:
        """Announce, once, that this worker takes jobs. Called at each connection to the broker."""
        if self.state != "loading":
            return
        self.state = "ready"
        self._heartbeat.announce()
        status = self.status()
        model = None if status.model is None else status.model.id
        facts = (status.role, status.device, status.device_warning, model, status.queue)
        log.info("ready: role=%s device=%s warning=%s model=%s queue=%s", *facts)

    def drain(self) -> None:
        """Announce that this worker takes no more jobs. Safe in a signal handler."""
        self.state = "draining"
        if self.settings.drain_timeout_s is not None:
            self.hand_back_at = min(self.hand_back_at, time.monotonic() + self.settings.drain_timeout_s)
        self._heartbeat.announce_soon()

    def report_end(self, task: str, job_id: str, outcome: object) -> None:
        """Count and log a job whose outcome is stored."""
        if task not in TASK_ROLES:
            return
        self.metrics.count_job(getattr(outcome, "code", None))
        if self.settings.log_format == "json":
            log_job(task, job_id, outcome, self.node, str(self.device))

    def run_jobs(self) -> None:
        """Go on with all jobs, and store the outcomes that are due. Celery's loop calls it each round.

        The loop does not run while Celery connects again or shuts down: then others call it.
        """
        self.jobs.run()
        self.outcomes.flush()

    def stop(self) -> None:
        self._heartbeat.withdraw()

    def status(self) -> AnyWorkerStatus:
        """The worker's status, as it is announced."""
        raise NotImplementedError

    def _is_alive(self) -> bool:
        return True

    def _facts(self, *packages: str) -> dict[str, Any]:
        """The fields of a status that both roles have."""
        return {
            "node": self.node,
            "state": self.state,
            "problem": store_health.problem,
            "role": self.settings.role,
            "queue": self.queue,
            "requested_device": self.settings.device,
            "device": str(self.device),
            "device_warning": self.device_warning,
            "jobs_done": self.metrics.num_done,
            "jobs_failed": self.metrics.num_failed,
            "busy_s": self.jobs.busy_s,
            # Release 0.1.0 did not announce its own version: its scripts do not note where messages are.
            "versions": {"kronos": __version__, "python": platform.python_version()}
            | {name: version(name) for name in packages},
            "host": platform.node(),
            "pid": os.getpid(),
            "uptime_s": round(time.time() - self._started, 3),
        }

    def _note_repeated(self, tag: str) -> None:
        """Count a lost claim, only once."""
        if self.claims.take_away(tag):
            self.metrics.jobs_repeated.inc()


@dataclass
class WorkerState:
    """The state of this process, which Celery's signals change."""

    process: WorkerProcess | None = None
    is_draining: bool = False
    is_ending: bool = False


current = WorkerState()


def node_name(settings: WorkerSettings, device: str, host: str, pid: int) -> str:
    """The default name, such as ``forecast-cuda0-kronos-small-4711@host`` or ``finetune-cpu-4711@host``.

    The model's part is the last part of its hub id, folder or name, safe in queue names and URLs. The process
    id makes the name unique on its host.
    """
    parts = [settings.role, device.replace(":", "")]
    if settings.role == "forecast":
        last = re.split(r"[/\\]", (settings.model or DEFAULT_MODEL).rstrip("/\\"))[-1].lower()
        parts.append(re.sub(r"[^a-z0-9._]+", "-", last).strip("-.")[:MAX_MODEL_CHARS] or "model")
    return f"{'-'.join(parts)}-{pid}@{host}"
