"""Fair shares of slots between jobs. No torch.

A priority class gets ``CLASS_RATIO`` times the slots of the next class that has work, and the jobs of one
class get equal slots. What a job cannot use goes to the others (weighted max-min fairness). If there are
fewer slots than jobs, they take turns by weighted fair queueing (Demers, Keshav and Shenker, 1989): next is
the job that had the least service.
"""

from collections import Counter, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kronos_model.engine.generation import PRIORITIES

CLASS_RATIO: Final = 8
"""Slots of a class for one of the next lower class, while both have work."""
QUANTUM_BARS: Final = 16
"""Bars that a job without a slot may fall behind, by weight, before it gets that of another."""


@dataclass
class JobShare:
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
    """Bars that were computed for each job, by weight. A new job starts with the average of the others.

    A job has an account, an index of arrays, so that a bar of every path is counted at once.
    """

    def __init__(self) -> None:
        self._accounts: dict[Hashable, int] = {}
        self._free: list[int] = []
        self._by_account = np.zeros(0)
        self._weights = np.zeros(0)
        self._weight = 0  # of all jobs
        self._num_series: Counter[Hashable] = Counter()
        self._virtual_time = 0.0

    def __getitem__(self, job: Hashable) -> float:
        return float(self._by_account[self._accounts[job]])

    def join(self, job: Hashable, rank: int) -> None:
        """Note one more series of a job."""
        if job not in self._accounts:
            if not self._free:
                self._grow()
            account = self._accounts[job] = self._free.pop()
            self._by_account[account] = self._virtual_time
            self._weights[account] = weight_of(rank)
            self._weight += weight_of(rank)
        self._num_series[job] += 1

    def leave(self, job: Hashable) -> None:
        """Note the end of a series; its job is forgotten with the last."""
        self._num_series[job] -= 1
        if not self._num_series[job]:
            account = self._accounts.pop(job)
            self._free.append(account)
            self._weight -= int(self._weights[account])
            del self._num_series[job]

    def account_of(self, job: Hashable) -> int:
        return self._accounts[job]

    def count(self, job: Hashable, num_bars: int) -> None:
        """Note bars that were computed for a job."""
        account = self._accounts[job]
        self._by_account[account] += num_bars / self._weights[account]
        self._virtual_time += num_bars / self._weight

    def count_paths(self, accounts: NDArray[np.int64]) -> None:
        """Note a bar of each of these paths, by the accounts of their jobs."""
        self._by_account += np.bincount(accounts, minlength=len(self._by_account)) / self._weights
        self._virtual_time += len(accounts) / self._weight

    def catch_up(self, job: Hashable) -> None:
        """Let a job that has all it wants not fall behind new ones: it needs no more."""
        account = self._accounts[job]
        self._by_account[account] = max(self._by_account[account], self._virtual_time)

    def catch_up_all(self) -> None:
        """The same for every job."""
        np.maximum(self._by_account, self._virtual_time, out=self._by_account)

    def _grow(self) -> None:
        num_accounts = max(64, len(self._by_account))  # as many again
        self._free += range(len(self._by_account), len(self._by_account) + num_accounts)
        self._by_account = np.append(self._by_account, np.zeros(num_accounts))
        self._weights = np.append(self._weights, np.ones(num_accounts))


def weight_of(rank: int) -> int:
    """The weight of a job's class."""
    return int(CLASS_RATIO ** (len(PRIORITIES) - 1 - rank))


def set_shares(jobs: Sequence[JobShare], num_slots: int) -> None:
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


def set_targets(jobs: Sequence[JobShare], num_slots: int) -> None:
    """Compute how many slots each job should hold: its share in whole slots, and a part of what is left."""
    set_shares(jobs, num_slots)
    for job in jobs:
        job.target = int(job.share + 1e-9)
    left = num_slots - sum(job.target for job in jobs)

    def give(job: JobShare, most: int) -> None:
        nonlocal left
        given = max(0, min(most, left))
        job.target += given
        left -= given

    without = sorted((job for job in jobs if not job.target), key=lambda job: job.turn)
    turns = [deque(job for job in without if job.rank == rank) for rank in range(len(PRIORITIES))]
    while left > 0 and (heads := [of_class for of_class in turns if of_class]):
        # A class has its turn when it is behind a higher one by a bar of the lowest for each class between.
        following = min(heads, key=lambda one: one[0].service + one[0].rank)
        num_turns = min(left, len(following)) if len(heads) == 1 else 1
        for _ in range(num_turns):
            following.popleft().target = 1
        left -= num_turns
    if left > 0:
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
