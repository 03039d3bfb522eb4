"""The queue of a job, and the live workers.

Every few seconds a worker announces itself under its own key, also while it is busy or loading. A worker that
is gone disappears after ``ANNOUNCEMENT_TTL_S``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError
from redis import Redis
from redis.exceptions import ResponseError

from kronos_client.contract import names as contract
from kronos_client.contract.errors import ErrorCode, JobError, first_reason
from kronos_client.contract.names import KEY_PREFIX, TASK_ROLES, Role, worker_key
from kronos_client.redis.connection import connect, read_bytes
from kronos_client.redis.queues import NO_PREFIX, QueueNames, is_gpu_queue, role_of
from kronos_client.redis.scripts import read_script
from kronos_model.text import escaped, excerpt

if TYPE_CHECKING:
    from kronos_client.contract.worker_status import AnyWorkerStatus, WorkerStatus

log = logging.getLogger(__name__)

WORKERS_KEY: Final = f"{KEY_PREFIX}workers"
ANNOUNCEMENT_TTL_S: Final = 15
ANNOUNCEMENT_INTERVAL_S: Final = 5

GPU_WORKERS: Final[dict[Role, str]] = {"forecast": "GPU worker", "finetune": "GPU worker for finetuning"}
"""Their names in messages."""


def announce(redis: Redis, status: WorkerStatus) -> Any:
    """Publish a worker's status, which expires unless it is renewed. Returns the JSON that was there."""
    return redis.register_script(read_script("announce"))(
        keys=[worker_key(status.node), WORKERS_KEY],
        args=[status.node, status.model_dump_json(exclude_unset=True), ANNOUNCEMENT_TTL_S],
    )


def withdraw(redis: Redis, node: str) -> None:
    """Remove a worker's announcement."""
    pipe: Any = redis.pipeline(transaction=False)
    pipe.delete(worker_key(node)).zrem(WORKERS_KEY, node).execute()


def live_workers(redis: Redis) -> list[AnyWorkerStatus]:
    """Read the status of every live worker, ordered by node name.

    Any app may write announcements. An invalid one, such as one of a newer release, is left out and logged
    once.
    """
    try:
        members = read_bytes(redis, "ZRANGE", WORKERS_KEY, 0, -1)
    except ResponseError as error:
        if not str(error).startswith("WRONGTYPE"):
            raise
        _warn_once("all announcements are", f"the key {WORKERS_KEY} is not a sorted set: delete it")
        return []
    if not members:
        return []
    from kronos_client.contract.worker_status import WORKER_STATUS  # most of the contract's models

    nodes = sorted(member.decode(errors="replace") for member in members)
    workers = []
    for node, text in zip(nodes, read_bytes(redis, "MGET", *map(worker_key, nodes)), strict=True):
        try:
            if text is not None:
                workers.append(WORKER_STATUS.validate_json(text))
        except ValidationError as error:
            _warn_once(f"the announcement of worker {excerpt(node)} is", first_reason(error))
    return workers


@lru_cache(maxsize=100)
def _warn_once(what: str, reason: str) -> None:
    log.warning("%s ignored: %s", what, escaped(reason, 200))


def is_gpu_ready(workers: Iterable[WorkerStatus], names: QueueNames = NO_PREFIX) -> bool:
    """Whether any worker of the gpu pool is ready to take jobs."""
    return _is_ready(names.on_device("cuda"), workers)


def _is_ready(queue: str, workers: Iterable[WorkerStatus]) -> bool:
    return any(worker.queue == queue and worker.is_ready for worker in workers)


def why_waiting(queue: str, workers: Iterable[WorkerStatus]) -> str | None:
    """Why no worker takes jobs from a queue now, with the command that starts one; None if one is ready."""
    serving = [worker for worker in workers if worker.queue == queue and worker.state != "draining"]
    if any(worker.is_ready for worker in serving):
        return None
    role = " --role finetune" if role_of(queue) == "finetune" else ""
    device = " --device cuda" if is_gpu_queue(queue) else ""
    command = f"kronos worker{role}{device}"
    if not serving:
        return f"No worker serves the queue {queue}. Jobs wait until one does; start one with: {command}"
    how = ", ".join(sorted({worker.condition for worker in serving}))
    how = "is still loading its model" if how == "loading" else f"is {how}"
    state = f"Every worker of the queue {queue} {how}"
    return f"{state}. Jobs wait until one is ready; start another one with: {command}"


def jobs_per_s(queue: str, workers: Iterable[WorkerStatus]) -> float:
    """Jobs per second that a queue's ready workers ended recently; 0 if unknown."""
    return sum((worker.jobs_per_s for worker in workers if worker.queue == queue and worker.is_ready), 0.0)


def choose_queue(
    device: str,
    allow_fallback: bool,
    workers: Iterable[WorkerStatus],
    task: str = contract.FORECAST_TASK,
    names: QueueNames = NO_PREFIX,
) -> str:
    """The queue for a job of ``task`` that requests ``device`` (auto, cpu, cuda, cuda:N, mps).

    Raises:
        JobError: NO_GPU_WORKER if the job needs a GPU, none is ready, and it forbids the CPU.
    """
    role = TASK_ROLES[task]
    queue, cpu_queue = names.on_device(device, role), names.on_device("cpu", role)
    # A backtest computes nothing itself: a GPU worker is better left to training.
    if task == contract.BACKTEST_TASK and _is_ready(cpu_queue, workers):
        return cpu_queue
    if device == "cpu" or _is_ready(queue, workers):
        return queue
    if device != "auto" and not allow_fallback:
        raise no_gpu_worker(device, role)
    return cpu_queue


def why_elsewhere(
    wanted: str, actual: str, own_warning: str | None, *, allow_fallback: bool, role: Role = "forecast"
) -> str | None:
    """The warning for a job that does not run on the device it requested.

    Args:
        actual: The worker's device, such as ``cpu`` or ``cuda:0``.
        own_warning: The worker's warning, if it does not run on the device in its settings.

    Raises:
        JobError: NO_GPU_WORKER if the job forbids the CPU.
    """
    kind = actual.partition(":")[0]
    if wanted == kind == "cpu":
        return None
    if wanted in ("auto", kind, actual):
        return own_warning
    if kind == "cpu":
        if not allow_fallback:
            raise no_gpu_worker(wanted, role)
        name = "MPS" if wanted == "mps" else "CUDA"
        return f"{name} device '{wanted}' requested but no {GPU_WORKERS[role]} is ready. Falling back to CPU."
    return f"Device '{wanted}' requested but this worker runs on '{actual}'. Running on '{actual}'."


def no_gpu_worker(device: str, role: Role) -> JobError:
    """The error of a job that needs a GPU if no GPU worker is ready."""
    message = f"device {device!r} was requested, no {GPU_WORKERS[role]} is ready, and the job forbids "
    message += "falling back; start a GPU worker or allow falling back to the CPU"
    return JobError(ErrorCode.NO_GPU_WORKER, message, "device")


class TaskRouter:
    """Celery's ``task_routes`` for our tasks, so that senders need not name a queue."""

    def __init__(self, redis_url: str, names: QueueNames = NO_PREFIX) -> None:
        self._url = redis_url
        self._names = names

    @cached_property
    def _redis(self) -> Redis:
        return connect(self._url)

    def __call__(
        self, name: str, args: Any, kwargs: Any, options: Any, task: Any = None, **_: Any
    ) -> dict[str, str] | None:
        if "queue" in options:
            return None  # the sender's choice wins
        if name in (contract.STATUS_TASK, contract.FEED_APPEND_TASK):
            workers = live_workers(self._redis)
            # A finetuning worker does not answer while it trains.
            queues = self._names.of_role("forecast")
            return {"queue": next((queue for queue in queues if _is_ready(queue, workers)), queues[0])}
        role = TASK_ROLES.get(name)
        if role is None:
            return None
        job = kwargs.get("job") if isinstance(kwargs, Mapping) else None
        job = job if isinstance(job, Mapping) else {}
        device, allow_fallback = job.get("device", "auto"), job.get("allow_fallback", True)
        if not isinstance(device, str) or device.partition(":")[0] not in ("auto", "cuda", "mps"):
            # The worker answers a malformed job with its code.
            return {"queue": self._names.on_device("cpu", role)}
        workers = live_workers(self._redis)
        return {"queue": choose_queue(device, bool(allow_fallback), workers, name, self._names)}
