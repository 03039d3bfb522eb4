"""How many jobs a worker takes off its queue: what its engines have room for, and no more.

Celery takes a job for every thread of the pool, whatever the jobs hold. One job of many paths fills the
engine; jobs that are taken behind it wait here, out of reach of workers that could run them at once.
"""

import threading
from collections.abc import Callable, Container, Iterable
from typing import Any, Final

from celery import bootsteps
from celery.worker import state

from kronos_model.engine.engine import EngineLoad, StepReport

MAX_HELD_BYTES: Final = 64 * 2**20
"""Messages of jobs held; read, each may take ten times as much memory."""

MAX_JOBS_PER_SLOT: Final = 2
"""Jobs whose forecast is done and whose result is being stored hold no slot, and are held as well."""


def num_jobs_allowed(num_jobs: int, num_paths: int, slots: int) -> int:
    """Jobs that a worker may hold which now holds so many, with so many sample paths unfinished.

    A job further for each free slot, since it has one path at least; none where no slot is free. At most
    twice the slots, and at least one, so that an idle worker always takes a job.
    """
    return max(1, min(num_jobs + max(0, slots - num_paths), MAX_JOBS_PER_SLOT * slots))


def num_paths_of(payload: Any) -> int:
    """Sample paths that a message's job asks for: of ``[args, kwargs, embed]``, as Celery sends it.

    1 for whatever is no job; the task answers that at once.
    """
    try:
        job = payload[1]["job"]
        num_series, sample_count = len(job["series"]), (job.get("sampling") or {}).get("sample_count", 1)
    except (LookupError, TypeError, AttributeError):
        return 1
    return max(1, num_series * sample_count) if isinstance(sample_count, int) else 1


def free_slots(load: EngineLoad) -> int:
    """Below 0 where series wait for slots."""
    return load.slots - load.running - load.waiting


class Capacity:
    """The jobs that this process has taken, and whether it has room for another. May be shared by threads.

    A job that was taken and is in no engine yet counts by what its message asks for. Otherwise a burst of
    large jobs would all be taken before the first of them counts in an engine's load.

    Which engine a job needs is known only once it is taken. If one is full and another is not, jobs are taken
    one at a time, as long as none of them has to wait.

    Args:
        loads: Returns what each engine holds.
    """

    def __init__(self, loads: Callable[[], Iterable[EngineLoad]]) -> None:
        self._loads = loads
        self._lock = threading.Lock()
        self._paths_on_their_way: dict[str, int] = {}  # by job id; 0 once an engine counts them
        self._num_bytes: dict[str, int] = {}
        self._refused = False
        self._wake: Callable[[], object] = lambda: None

    @property
    def num_jobs(self) -> int:
        """Jobs held at the last call of ``has_room``."""
        return len(self._paths_on_their_way)

    def take(self, job_id: str, num_paths: int, num_bytes: int = 0) -> None:
        """A job was received, in a message of so many bytes."""
        with self._lock:
            self._paths_on_their_way[job_id] = num_paths
            self._num_bytes[job_id] = num_bytes

    def admitted(self, job_id: str) -> None:
        """The job is in an engine: its paths are in ``load`` from now on."""
        with self._lock:
            if job_id in self._paths_on_their_way:
                self._paths_on_their_way[job_id] = 0

    def has_room(self, unfinished: Container[str]) -> bool:
        """Whether to take another job; ``unfinished`` holds the ids of those that have not ended."""
        with self._lock:
            on_their_way = self._paths_on_their_way
            for job_id in [job_id for job_id in on_their_way if job_id not in unfinished]:
                del on_their_way[job_id], self._num_bytes[job_id]
            num_jobs, num_coming = len(on_their_way), sum(on_their_way.values())
            if sum(self._num_bytes.values()) >= MAX_HELD_BYTES:
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
        """Call this when there may be room again before a job has ended; from the engine's thread."""
        self._wake = wake

    def observe_step(self, model_id: str, report: StepReport, load: EngineLoad) -> None:
        """The paths of a large job end one after the other, and make room before it has ended."""
        if self._refused and free_slots(load) > 0:
            self._refused = False
            self._wake()

    def observe_generation(self, model_id: str, generation: object) -> None:
        """Nothing: ``observe_step`` has seen the step that ended it."""


class CapacityStep(bootsteps.StartStopStep):
    """Asks the capacity before each job that is taken off the queue.

    Celery's prefetch count is set between two rounds of its event loop, kombu asks whether to take a job in
    the middle of one; so the answer is given there, as ``worker_disable_prefetch`` does in Celery 5.7. The
    count itself, which is the pool's concurrency, stays as the upper bound.

    Where no capacity is there, jobs run in other processes (prefork), of which each takes one at a time.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, consumer: Any) -> None:
        """Called at every (re)connection; the channel is a new one each time, the jobs held are not."""
        capacity: Capacity | None = getattr(consumer.controller, "capacity", None)
        if capacity is None:
            return
        self._capacity = capacity
        consumer.task_consumer.channel.has_room = lambda: capacity.has_room(state.requests)
        consumer.on_task_message.add(self._take)
        if consumer.hub is not None:
            capacity.wake_by(lambda: consumer.hub.call_soon(_nothing))

    def _take(self, request: Any) -> None:
        # Decoded already: Celery's strategy looks into it on this thread.
        message = request.message
        self._capacity.take(request.id, num_paths_of(message.payload), len(message.body))


def _nothing() -> None:
    """A callback that makes the loop go round."""
