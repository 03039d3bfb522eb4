"""Which job a worker takes next: classes by their shares, the lists of a class by turns. No Redis.

While several classes have work, one gets ``CLASS_RATIO`` times what the next lower one gets, in bars of all
paths. So its bars count that many times less. Next is the class that would have the least service after one
more job like the last (``FairQueue``). A class without work is owed nothing for that time.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Final, NamedTuple

from kronos_client.contract.names import CELERY_PRIORITIES, FORECAST_TASK
from kronos_client.redis.message import horizon_of
from kronos_client.redis.queues import (
    LARGE_PREFIX,
    PRIORITY_STEPS,
    large_key,
    list_key,
    queue_and_step,
    rank_of,
)
from kronos_model.engine.scheduling.shares import CLASS_RATIO, FairQueue
from worker.celery_types import Body

NUM_CLASSES: Final = len(CELERY_PRIORITIES)
STEPS_OF_RANK: Final = [
    [step for step in PRIORITY_STEPS if rank_of(step) == rank] for rank in range(NUM_CLASSES)
]
OVERDUE_S: Final = 30.0
"""Seconds after which a large job on a second list counts as overdue."""
MAX_COST: Final = 2**22
"""The most that a job counts: a message may claim any size."""


class Large(IntEnum):
    """Which large jobs of a class there is room for."""

    NONE = 0
    OVERDUE = 1
    ANY = 2


class Room(NamedTuple):
    """Which further jobs of a class a worker takes."""

    small: bool = False
    large: Large = Large.NONE


@dataclass(frozen=True)
class Rooms:
    """The room for each class, from the highest.

    Attributes:
        max_small_paths: Jobs of more paths are large.
        num_paths: Paths that would get slots at once, at least 1.
        num_bytes: Bytes of messages that there is room for.
        has_thread: Whether there is a thread for a job with callbacks or a chain.
    """

    of_class: tuple[Room, ...] = (Room(True, Large.ANY),) * NUM_CLASSES
    max_small_paths: int = 1
    num_paths: int = 1
    num_bytes: int = 0
    has_thread: bool = True

    def __bool__(self) -> bool:
        return any(any(room) for room in self.of_class)

    def have_more_than(self, others: "Rooms") -> bool:
        """Whether a class has room for jobs for which it has none in the others."""
        pairs = zip(self.of_class, others.of_class, strict=True)
        return any(own.small > other.small or own.large > other.large for own, other in pairs)

    def have_room(self, source: str, num_paths: int) -> bool:
        """Whether a job from this list may be taken."""
        is_small = num_paths <= self.max_small_paths or source.startswith(LARGE_PREFIX)
        return is_small or self.of_class[_rank_of(source)].large is Large.ANY


ALL_ROOM: Final = Rooms()
NO_ROOM: Final = Rooms((Room(),) * NUM_CLASSES)


class ServiceOrder:
    """The order in which one worker takes from the lists of its queues."""

    def __init__(self) -> None:
        self._fair = FairQueue()
        self._fair.grow(NUM_CLASSES)  # an account for each class; all are of one rank, so they compete
        self._has_work = [False] * NUM_CLASSES  # by the last take that asked for the class
        self._last_cost = 1
        self._turns: dict[str, int] = {}  # by list, the last turn that it had

    def lists(self, queues: Sequence[str], rooms: Rooms) -> dict[str, float]:
        """The lists to take from, in order of service, and the seconds that jobs must have waited there."""
        asked = [rank for rank, room in enumerate(rooms.of_class) if any(room)]
        for rank in asked:  # it may have work now
            self._fair.count(rank, 0, lacks=True, competes=True)
        asked.sort(key=lambda rank: (self._fair.service[rank] + self._last_cost * self._weight(rank), rank))
        return {key: age_s for rank in asked for key, age_s in self._of_class(rank, queues, rooms)}

    def note_waiting(self, asked: Iterable[str], found: Iterable[str]) -> None:
        """Note which of the lists that were asked for had messages."""
        ranks = set(map(_rank_of, found))
        for rank in set(map(_rank_of, asked)):
            self._has_work[rank] = has_work = rank in ranks
            self._fair.count(rank, 0, lacks=has_work, competes=has_work)

    def note_taken(self, source: str, cost: int) -> None:
        """Note a job that was taken, and its cost."""
        rank = _rank_of(source)
        self._turns[source] = max(self._turns.values(), default=0) + 1
        self._fair.serve(rank, 0, cost * self._weight(rank))
        self._last_cost = cost

    def _of_class(self, rank: int, queues: Sequence[str], rooms: Rooms) -> list[tuple[str, float]]:
        room = rooms.of_class[rank]
        keys = [list_key(queue, step) for step in STEPS_OF_RANK[rank] for queue in queues]
        lists = dict.fromkeys(keys, 0.0) if room.small else {}
        if room.large:
            lists |= dict.fromkeys(map(large_key, keys), 0.0 if room.large is Large.ANY else OVERDUE_S)
        return sorted(lists.items(), key=lambda item: self._turns.get(item[0], 0))

    def _weight(self, rank: int) -> float:
        """How much the bars of a class count."""
        return float(CLASS_RATIO ** -sum(self._has_work[rank + 1 :]))


def cost_of(task: str, payload: Body) -> int:
    """What a job counts among the classes: its bars, over all paths; 1 if it is not a forecast."""
    if task != FORECAST_TASK:
        return 1
    job = payload[1].get("job")
    num_bars = horizon_of(job) if isinstance(job, Mapping) else None
    return min(num_paths_of(payload) * max(1, num_bars or 1), MAX_COST)


def needs_thread(payload: Body) -> bool:
    """Whether the job in a message body has callbacks or a chain."""
    return any((payload[2] or {}).values())


def num_paths_of(payload: Body) -> int:
    """Sample paths of the job in a message body ``[args, kwargs, embed]``; 1 if it is not a job."""
    try:
        job = payload[1]["job"]
        num_series = job["feed"]["num_series"] if "feed" in job else len(job["series"])
        sample_count = (job.get("sampling") or {}).get("sample_count", 1)
    except (LookupError, TypeError, AttributeError):
        return 1
    return max(1, num_series * sample_count) if isinstance(num_series * sample_count, int) else 1


@cache
def _rank_of(key: str) -> int:
    return rank_of(queue_and_step(key)[1])
