"""Fair shares of slots between jobs. No torch.

A priority class gets ``CLASS_RATIO`` times the slots of the next class that has work, and the jobs of one
class get equal slots. What a job cannot use goes to the others (weighted max-min fairness). If there are
fewer slots than jobs, they take turns by weighted fair queueing (Demers, Keshav and Shenker, 1989): next is
the job that had the least service.
"""

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from kronos_model.engine.generation import PRIORITIES

CLASS_RATIO: Final = 8
"""Slots of a class for one of the next lower class, while both have work."""
QUANTUM_BARS: Final = 16
"""Bars that a job without a slot may fall behind, by weight, before it gets that of another."""


@dataclass
class Job:
    """What one job holds and could use.

    Attributes:
        rank: of its priority class; 0 is the highest.
        service: bars that were computed for it, by weight.
        num_wanted: slots that it could use, with those that it holds.
    """

    rank: int
    service: float
    num_wanted: int = 0
    num_held: int = 0
    share: float = 0.0
    target: int = 0

    @property
    def turn(self) -> float:
        """The job of a class with the least is next. A holder keeps its slot until it is a quantum ahead."""
        return self.service - (QUANTUM_BARS / weight_of(self.rank) if self.num_held else 0)


class Service:
    """Bars that were computed for each job, by weight. A new job starts with the average of the others."""

    def __init__(self) -> None:
        self._by_job: dict[Hashable, float] = {}
        self._weights: dict[Hashable, int] = {}
        self._weight = 0  # of all jobs
        self._num_series: Counter[Hashable] = Counter()
        self._virtual_time = 0.0

    def __getitem__(self, job: Hashable) -> float:
        return self._by_job[job]

    def join(self, job: Hashable, rank: int) -> None:
        """Note one more series of a job."""
        if job not in self._by_job:
            self._by_job[job] = self._virtual_time
            self._weights[job] = weight_of(rank)
            self._weight += self._weights[job]
        self._num_series[job] += 1

    def leave(self, job: Hashable) -> None:
        """Note the end of a series; its job is forgotten with the last."""
        self._num_series[job] -= 1
        if not self._num_series[job]:
            self._weight -= self._weights.pop(job)
            del self._by_job[job], self._num_series[job]

    def count(self, bars: Iterable[tuple[Hashable, int]]) -> None:
        """Note bars that were computed for jobs."""
        total = 0
        for job, num_bars in bars:
            self._by_job[job] += num_bars / self._weights[job]
            total += num_bars
        self._virtual_time += total / self._weight

    def catch_up(self, job: Hashable) -> None:
        """Let a job that has all it wants not fall behind new ones: it needs no more."""
        self._by_job[job] = max(self._by_job[job], self._virtual_time)


def weight_of(rank: int) -> int:
    """The weight of a job's class."""
    return int(CLASS_RATIO ** (len(PRIORITIES) - 1 - rank))


def set_shares(jobs: Sequence[Job], num_slots: int) -> None:
    """Compute each job's fair share of the slots."""
    ranks = sorted({job.rank for job in jobs})
    classes = [[job for job in jobs if job.rank == rank] for rank in ranks]
    of_classes = _max_min(
        [sum(job.num_wanted for job in members) for members in classes],
        [float(CLASS_RATIO) ** -place for place in range(len(classes))],
        num_slots,
    )
    for members, of_class in zip(classes, of_classes, strict=True):
        wanted = [job.num_wanted for job in members]
        for job, share in zip(members, _max_min(wanted, [1.0] * len(members), of_class), strict=True):
            job.share = share


def set_targets(jobs: Sequence[Job], num_slots: int) -> None:
    """Compute how many slots each job should hold: its share in whole slots, and a part of what is left."""
    set_shares(jobs, num_slots)
    for job in jobs:
        job.target = int(job.share + 1e-9)
    left = num_slots - sum(job.target for job in jobs)

    def give(job: Job, most: int) -> None:
        nonlocal left
        given = max(0, min(most, left))
        job.target += given
        left -= given

    turns = [
        deque(sorted((job for job in jobs if job.rank == rank and not job.target), key=lambda job: job.turn))
        for rank in range(len(PRIORITIES))
    ]
    while left > 0 and any(turns):
        # A class has its turn when it is behind a higher one by a bar of the lowest for each class between.
        heads = [of_class for of_class in turns if of_class]
        give(min(heads, key=lambda one: one[0].service + one[0].rank).popleft(), 1)
    for job in jobs:  # what it holds already
        give(job, job.num_held - job.target)
    for job in sorted(jobs, key=lambda job: (job.rank, job.service)):
        give(job, job.num_wanted - job.target)


def _max_min(wanted: Sequence[int], weights: Sequence[float], total: float) -> list[float]:
    """Divide ``total`` by weight; nobody gets more than wanted, and the others share what is left."""
    shares = [0.0] * len(wanted)
    left, weight_left = total, sum(weights)
    for index in sorted(range(len(wanted)), key=lambda index: wanted[index] / weights[index]):
        shares[index] = min(wanted[index], left * weights[index] / weight_left)
        left -= shares[index]
        weight_left -= weights[index]
    return shares
