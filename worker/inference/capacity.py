"""Limits the jobs that a worker takes off its queue to what its engines have room for.

Celery takes one job for every thread of the pool. But one job of many paths fills the engine. Jobs taken
after it would wait here, although other workers could run them at once.
"""

import threading
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import Any, Final

from celery import bootsteps
from celery.worker import state

from kronos_model.engine.engine import EngineLoad, StepReport

MAX_HELD_BYTES: Final = 64 * 2**20
"""Messages of the jobs held. A parsed message may take ten times as much memory."""
MAX_JOBS_PER_SLOT: Final = 2
"""More than 1: a job whose result is being stored is still held, but uses no slot."""


def num_jobs_allowed(num_jobs: int, num_paths: int, slots: int) -> int:
    """Jobs that a worker may hold if it now holds ``num_jobs`` with ``num_paths`` unfinished sample paths.

    One more job for each free slot, since a job has at least one path. At most twice the slots, and at least
    one, so that an idle worker always takes a job.
    """
    return max(1, min(num_jobs + max(0, slots - num_paths), MAX_JOBS_PER_SLOT * slots))


def num_paths_of(payload: Any) -> int:
    """Sample paths of the job in a message body ``[args, kwargs, embed]``; 1 if it is not a job."""
    try:
        job = payload[1]["job"]
        num_series, sample_count = len(job["series"]), (job.get("sampling") or {}).get("sample_count", 1)
    except (LookupError, TypeError, AttributeError):
        return 1
    return max(1, num_series * sample_count) if isinstance(sample_count, int) else 1


def free_slots(load: EngineLoad) -> int:
    """Slots that are free; below 0 if series wait for slots."""
    return load.slots - load.running - load.waiting


@dataclass
class _Held:
    num_paths: int  # on their way to an engine; 0 once it counts them
    num_bytes: int


class Capacity:
    """The jobs that this process has taken, and whether it has room for another. May be shared by threads.

    A taken job that is in no engine yet counts by the sample paths in its message. Otherwise a burst of large
    jobs would all be taken before the first of them counts in an engine's load.

    The engine that a job needs is known only after the job is taken. If one engine is full and another is
    not, jobs are taken one at a time, as long as none of them has to wait.
    """

    def __init__(self, loads: Callable[[], Iterable[EngineLoad]]) -> None:
        self._loads = loads
        self._lock = threading.Lock()
        self._held: dict[str, _Held] = {}  # by job id
        self._refused = False
        self._wake: Callable[[], object] = lambda: None

    def take(self, job_id: str, num_paths: int, num_bytes: int = 0) -> None:
        """Note a received job and the size of its message."""
        with self._lock:
            self._held[job_id] = _Held(num_paths, num_bytes)

    def admitted(self, job_id: str) -> None:
        """Note that an engine's load now counts the job's paths."""
        with self._lock:
            if job_id in self._held:
                self._held[job_id].num_paths = 0

    def has_room(self, unfinished: Container[str]) -> bool:
        """Whether to take another job. ``unfinished`` holds the ids of jobs that have not ended."""
        with self._lock:
            self._held = {job_id: held for job_id, held in self._held.items() if job_id in unfinished}
            num_jobs, num_coming = len(self._held), sum(held.num_paths for held in self._held.values())
            if sum(held.num_bytes for held in self._held.values()) >= MAX_HELD_BYTES:
                return False
        loads = list(self._loads()) or [EngineLoad(0, 0, 0)]
        fullest = min(loads, key=free_slots)
        num_paths = num_coming + fullest.running + fullest.waiting
        has_room = num_jobs < num_jobs_allowed(num_jobs, num_paths, fullest.slots)
        if free_slots(fullest) <= 0 < max(map(free_slots, loads)):
            is_anyone_waiting = num_coming > 0 or any(load.waiting for load in loads)
            has_room = not is_anyone_waiting and num_jobs < sum(load.slots for load in loads)
        self._refused = not has_room
        return has_room

    def wake_by(self, wake: Callable[[], object]) -> None:
        """Set the function to call, on the engine's thread, when room appears before a job ends."""
        self._wake = wake

    def observe_step(self, model_id: str, report: StepReport, load: EngineLoad) -> None:
        """Wake Celery if there is room again: the paths of a large job end one after another."""
        if self._refused and free_slots(load) > 0:
            self._refused = False
            self._wake()

    def observe_generation(self, model_id: str, generation: object) -> None:
        """Nothing: ``observe_step`` is enough."""


class CapacityStep(bootsteps.StartStopStep):
    """Makes the channel check the capacity before each job that it takes.

    Celery sets its prefetch count between two rounds of its event loop, but kombu decides in the middle of a
    round. So the check is made there, as ``worker_disable_prefetch`` does in Celery 5.7. The prefetch count,
    which is the pool's concurrency, stays the upper bound.

    Without a capacity, jobs run in prefork children, each of which takes one job at a time.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, consumer: Any) -> None:
        """Called at every (re)connection: the channel is a new one, but the jobs are still held."""
        capacity: Capacity | None = getattr(consumer.controller, "capacity", None)
        if capacity is None:
            return
        self._capacity = capacity
        consumer.task_consumer.channel.has_room = lambda: capacity.has_room(state.requests)
        consumer.on_task_message.add(self._take)
        if consumer.hub is not None:
            capacity.wake_by(lambda: consumer.hub.call_soon(lambda: None))

    def _take(self, request: Any) -> None:
        message = request.message  # Celery has already decoded it
        self._capacity.take(request.id, num_paths_of(message.payload), len(message.body))
