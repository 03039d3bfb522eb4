"""Limits the jobs that a worker takes off its queue to what its engines have room for.

One job of many paths fills the engine. Jobs taken after it would wait here, although other workers could run
them at once. Small jobs have a part of their own, so that none waits for large ones.
"""

import threading
import time
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

from celery import bootsteps
from celery.worker import state
from celery.worker.request import Request

from kronos_client.redis.queues import rank_of
from kronos_model.engine.reports import EngineLoad, StepReport
from kronos_model.engine.scheduling.shares import CLASS_RATIO
from worker.broker.service_order import NUM_CLASSES, Large, Room, Rooms, needs_thread, num_paths_of
from worker.celery_types import Consumer

MAX_HELD_BYTES: Final = 64 * 2**20
"""Bytes of held messages from which no more jobs of the lowest class are taken. Parsed, they may take
ten times as much memory."""
RESERVED_BYTES: Final = MAX_HELD_BYTES // 4
"""So many bytes more for each higher class."""
MAX_JOBS_PER_SLOT: Final = 2
"""More than 1, because a job whose result is being stored is still held, but uses no slot."""
SMALL_JOBS_PER_WORKER: Final = 8
"""A job is small if its paths need at most the slots divided by this."""
MAX_CALLBACK_JOBS: Final = 8
"""The most held jobs with callbacks or a chain. Each has a thread."""
LATE_S: Final = 0.2
"""A full worker waits so long before it takes another job, because other workers may take it first. After a
small job it waits a part of this."""


def max_held_jobs(max_jobs: int) -> int:
    """The most held jobs of all classes, if the lowest has ``max_jobs``. Each higher class adds an eighth."""
    return max_jobs + (NUM_CLASSES - 1) * max(1, max_jobs // 8)


def num_jobs_allowed(num_jobs: int, num_paths: int, slots: int) -> int:
    """Jobs that a worker may hold if it now holds ``num_jobs`` with ``num_paths`` unfinished sample paths.

    One more job for each free slot, since a job has at least one path. At most twice the slots, and at least
    one, so that an idle worker always takes a job.
    """
    return max(1, min(num_jobs + max(0, slots - num_paths), MAX_JOBS_PER_SLOT * slots))


def free_slots(load: EngineLoad) -> int:
    """Slots that are free; below 0 if series wait for slots."""
    return load.slots - load.running - load.waiting


@dataclass
class _Held:
    rank: int  # of its priority class; 0 is the highest
    num_paths: int
    num_bytes: int
    needs_thread: bool = False
    is_admitted: bool = False  # whether an engine's load counts it


class Capacity:
    """The jobs that this process has taken, and which it has room for. May be shared by threads.

    A taken job that is in no engine yet counts by the sample paths in its message. Otherwise a burst of large
    jobs would all be taken before the first of them counts in an engine's load.

    The engine that a job needs is known only after the job is taken. If one engine is full and another is
    not, jobs are taken one at a time, as long as none of them has to wait.

    A full worker still takes jobs of a higher class than those that fill it. It takes others too, since its
    engine is fair, but only those that no other worker took within ``LATE_S``:

    - small jobs, until they would fill half of the slots;
    - large jobs, until they would fill all slots, where each counts as half of the slots at most;
    - one more large job if it is overdue;
    - jobs of each class, up to its share of the slots while the next higher class has jobs.

    Args:
        loads: Returns what each engine holds.
        max_jobs: Jobs that can be held at once, of all classes.
    """

    def __init__(self, loads: Callable[[], Iterable[EngineLoad]], max_jobs: int = 2**31) -> None:
        self._loads = loads
        self._max_jobs = max_jobs
        self._lock = threading.Lock()
        self._held: dict[str, _Held] = {}  # by job id
        self._full_since: float | None = None  # later: when it last took a job while full
        self._late_ranks: set[int] = set()  # whose jobs are taken only because no other worker took them
        self._max_small_paths = 1
        self._next_wake = 0.0
        self._wake: Callable[[], object] = lambda: None

    def take(
        self, job_id: str, num_paths: int, num_bytes: int = 0, rank: int = 0, *, needs_thread: bool = False
    ) -> None:
        """Note a received job, its class and the size of its message."""
        with self._lock:
            self._held[job_id] = _Held(rank, num_paths, num_bytes, needs_thread)
            if rank in self._late_ranks:
                part = min(1.0, num_paths / self._max_small_paths)
                self._full_since, self._next_wake = time.monotonic() - (1 - part) * LATE_S, 0.0

    def admitted(self, job_id: str) -> None:
        """Note that an engine's load now counts the job's paths."""
        with self._lock:
            if job_id in self._held:
                self._held[job_id].is_admitted = True

    def rooms(self, unfinished: Container[str]) -> Rooms:
        """Which further jobs there is room for.

        ``unfinished`` has the ids of jobs that have not ended.
        """
        with self._lock:
            self._held = {job_id: held for job_id, held in self._held.items() if job_id in unfinished}
            held = list(self._held.values())
        num_jobs, num_paths, num_bytes = ([0] * NUM_CLASSES for _ in range(3))
        num_coming = num_threads = 0
        for job in held:
            num_jobs[job.rank] += 1
            num_paths[job.rank] += job.num_paths
            num_bytes[job.rank] += job.num_bytes
            num_threads += job.needs_thread
            num_coming += 0 if job.is_admitted else job.num_paths  # else an engine's load counts them
        loads = list(self._loads()) or [EngineLoad(0, 0, 0)]
        slots, num_free = min([load.slots for load in loads]), self._num_free(len(held), num_coming, loads)
        num_open, now = self._num_classes(num_jobs, num_bytes), time.monotonic()
        self._max_small_paths = max(1, slots // SMALL_JOBS_PER_WORKER)
        is_free = num_free > 0 and num_open == NUM_CLASSES
        self._full_since = None if is_free else self._full_since or now
        is_late = self._full_since is not None and now - self._full_since >= LATE_S
        self._late_ranks = set()
        rooms = [Room()] * NUM_CLASSES
        for rank in range(num_open):
            if num_free > 0 or (sum(num_paths[: rank + 1]) < slots and rank < NUM_CLASSES - 1):
                rooms[rank] = Room(True, Large.ANY)
            elif is_late and slots:
                rooms[rank] = self._late_room(held, rank, slots)
                self._late_ranks.add(rank)
        has_thread, bytes_left = num_threads < MAX_CALLBACK_JOBS, max(0, MAX_HELD_BYTES - sum(num_bytes))
        return Rooms(tuple(rooms), self._max_small_paths, max(1, num_free), bytes_left, has_thread)

    def _late_room(self, held: list[_Held], rank: int, slots: int) -> Room:
        """The room of a full worker for a class: its engine shares slots out fairly."""
        if sum(job.num_paths for job in held if job.rank == rank) < slots // (CLASS_RATIO + 1):
            return Room(True, Large.ANY)
        sizes, half = [job.num_paths for job in held if job.rank <= rank], max(1, slots // 2)
        num_small = sum(size for size in sizes if size <= self._max_small_paths)
        num_large = sum(min(size, half) for size in sizes if size > self._max_small_paths)
        late = Large.OVERDUE if num_large < slots + half else Large.NONE
        return Room(small=num_small < half, large=Large.ANY if num_large < slots else late)

    def _num_classes(self, num_jobs: list[int], num_bytes: list[int]) -> int:
        """The number of classes, from the highest, that may get another job by the limits on jobs and bytes.

        Each class has a part that jobs of lower classes cannot use.
        """
        for rank in range(NUM_CLASSES):
            num_reserved = rank * max(1, self._max_jobs // 10)  # the inverse of max_held_jobs()
            max_bytes = MAX_HELD_BYTES + (NUM_CLASSES - 1 - rank) * RESERVED_BYTES
            max_jobs = max(1, self._max_jobs - num_reserved)
            if sum(num_jobs[rank:]) >= max_jobs or sum(num_bytes[rank:]) >= max_bytes:
                return rank
        return NUM_CLASSES

    def _num_free(self, num_jobs: int, num_coming: int, loads: list[EngineLoad]) -> int:
        """How many more jobs would get free slots, by the fullest engine's slots and the limit on jobs.

        ``num_coming`` paths are in no engine yet.
        """
        fullest = min(loads, key=free_slots)
        if free_slots(fullest) <= 0 < max(map(free_slots, loads)):
            is_anyone_waiting = num_coming > 0 or any(load.waiting for load in loads)
            return int(not is_anyone_waiting and num_jobs < sum(load.slots for load in loads))
        num_paths = num_coming + fullest.running + fullest.waiting
        return min(num_jobs_allowed(num_jobs, num_paths, fullest.slots), self._max_jobs) - num_jobs

    def wake_by(self, wake: Callable[[], object]) -> None:
        """Set the function to call, on the engine's thread, when room appears before a job ends."""
        self._wake = wake

    def observe_step(self, model_id: str, report: StepReport, load: EngineLoad) -> None:
        """Wake Celery if there may be room again: the paths of a large job end one after another."""
        if self._full_since is None:
            return
        now = time.monotonic()
        if free_slots(load) > 0:
            self._full_since = None
        elif now < max(self._next_wake, self._full_since + LATE_S):
            return
        self._next_wake = now + LATE_S
        self._wake()

    def observe_generation(self, model_id: str, generation: object) -> None:
        """Nothing: ``observe_step`` is enough."""


class CapacityStep(bootsteps.StartStopStep):
    """Makes the channel check the capacity before each job that it takes.

    Celery sets its prefetch count between two rounds of its event loop, but kombu decides in the middle of a
    round. So the check is made there, as ``worker_disable_prefetch`` does in Celery 5.7.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, consumer: Consumer) -> None:
        """Called at every (re)connection: the channel is a new one, but the jobs are still held."""
        self._capacity = capacity = consumer.controller.capacity
        consumer.task_consumer.channel.rooms = partial(capacity.rooms, state.requests)
        consumer.on_task_message.add(self._take)
        capacity.wake_by(lambda: consumer.hub.call_soon(lambda: None))

    def _take(self, request: Request) -> None:
        message = request.message
        rank = rank_of((request.delivery_info or {}).get("priority"))
        given = (request.id, num_paths_of(message.body), message.properties["num_bytes"], rank)
        self._capacity.take(*given, needs_thread=needs_thread(message.body))
