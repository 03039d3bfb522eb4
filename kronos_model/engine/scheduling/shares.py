"""The jobs that have series in the engine, and their fair shares of slots. No torch.

A priority class gets ``CLASS_RATIO`` times the slots of the next class that has work, and the jobs of one
class get equal slots. What a job cannot use goes to the others (weighted max-min fairness). If there are
fewer slots than ``LEAST_SLOTS`` for each job, those of a class take turns (``FairQueue``). If there are fewer
than classes, so do these, by their shares.

What is counted of a job is in columns, so that a step of many jobs costs little more than one of few.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kronos_model.engine.generation import PRIORITIES, Generation
from kronos_model.engine.sequence import Sequence

CLASS_RATIO: Final = 8
"""Slots of a class for one of the next lower class, while both have work."""
WEIGHTS: Final = np.array([CLASS_RATIO ** (len(PRIORITIES) - 1 - rank) for rank in range(len(PRIORITIES))])
"""Of classes that have work, from the highest."""
QUANTUM_BARS: Final = 16
"""Bars that a job without slots may fall behind, for each slot of another of its class, before it gets these;
also the steps that a class's turn takes."""
LEAST_SLOTS: Final = 16
"""Of a job that could use so many, at most a quarter of all: fewer paths would read their prompt as often."""
GOLDEN_RATIO: Final = (5**0.5 - 1) / 2
"""Its multiples without their whole parts lie evenly between 0 and 1, however many are taken."""


class FairQueue:
    """Which job is next for slots, or for chunks: in each class, the one that had the least service.

    Fair queueing (Demers, Keshav and Shenker, 1989) between the jobs of a class. Service is counted in bars,
    by account. A class's virtual time is the service of a job that always competed and had an even share. A
    job that wanted nothing for a while is not owed anything for that time.
    """

    def __init__(self) -> None:
        self.service = np.zeros(0)
        self._ranks = np.zeros(0, dtype=np.int64)
        self._lacking = np.zeros(0, dtype=np.int64)  # the rank of a job that lacks something, else −1
        self._wants: list[tuple[bool, bool]] = []  # whether a job lacks something, and whether it competes
        self._num_competing = [0] * len(PRIORITIES)
        self._virtual_time = np.zeros(len(PRIORITIES))

    def grow(self, num_jobs: int) -> None:
        """Make accounts for so many more jobs."""
        self.service = np.pad(self.service, (0, num_jobs))
        self._ranks = np.pad(self._ranks, (0, num_jobs))
        self._lacking = np.pad(self._lacking, (0, num_jobs), constant_values=-1)
        self._wants += [(False, False)] * num_jobs

    def open(self, account: int, rank: int) -> None:
        """Begin an account for a new job."""
        self._ranks[account] = rank

    def close(self, account: int, rank: int) -> None:
        """End the account of a job that left."""
        self.count(account, rank, lacks=False, competes=False)
        self.service[account] = 0

    def count(self, account: int, rank: int, *, lacks: bool, competes: bool) -> None:
        """Note whether a job lacks something, and whether it competes: has something, or lacks it."""
        lacked, competed = before = self._wants[account]
        if before == (lacks, competes):
            return
        self._wants[account] = lacks, competes
        self._num_competing[rank] += competes - competed
        if lacks and not lacked:
            time = self._virtual_time[rank] = max(self._virtual_time[rank], self._least(rank))
            self.service[account] = max(self.service[account], time)
        self._lacking[account] = rank if lacks else -1

    def serve(self, account: int, rank: int, num_bars: float) -> None:
        """Note bars that were computed for a job."""
        self.service[account] += num_bars
        self._virtual_time[rank] += num_bars / max(1, self._num_competing[rank])

    def serve_each(self, accounts: NDArray[np.int64]) -> None:
        """Note a bar for each of these, which may name a job several times."""
        num_bars = np.bincount(accounts, minlength=len(self.service))
        self.service += num_bars
        of_classes = np.bincount(self._ranks, num_bars, len(PRIORITIES))
        self._virtual_time += of_classes / np.maximum(1, self._num_competing)

    def _least(self, rank: int) -> float:
        """The least service of the jobs that lack something. If none does, the most: none is owed any."""
        lacking = self.service[self._lacking == rank]
        return float(lacking.min() if len(lacking) else self.service[self._ranks == rank].max())


@dataclass(frozen=True)
class JobColumns:
    """What jobs hold and could use, each (jobs,). Those that want no slots get no share.

    Attributes:
        arrived: a number that grows with each new job.
        rank: of the priority class; 0 is the highest.
        service: bars that were computed for the job, by which jobs of a class take turns.
        held: slots.
        wanted: slots that it could use, with those that it holds.
    """

    arrived: NDArray[np.int64]
    rank: NDArray[np.int64]
    service: NDArray[np.float64]
    held: NDArray[np.int64]
    wanted: NDArray[np.int64]

    @cached_property
    def turn(self) -> NDArray[np.float64]:
        """The job of a class with the least is next. A holder keeps its slots until it is a quantum ahead."""
        return self.service - QUANTUM_BARS * self.held


@dataclass(eq=False)
class Job:
    """What a job runs, and what it places next: suspended paths, then paths that have not started.

    ``account`` is the index of its columns.
    """

    account: int
    rank: int
    num_series: int = 0
    running: dict[Sequence, None] = field(default_factory=dict)  # in slots
    suspended: dict[Sequence, None] = field(default_factory=dict)
    waiting: dict[Generation, None] = field(default_factory=dict)
    num_held: int = 0  # slots
    num_waiting: int = 0  # paths
    num_in_chunks: int = 0  # sequences


class Jobs:
    """All jobs, and their columns by account. They compete for slots, and for chunks of other work."""

    def __init__(self) -> None:
        self._by_key: dict[Hashable, Job] = {}
        self._by_account: list[Job | None] = []
        self._free: list[int] = []
        self._counts = np.zeros((4, 0), dtype=np.int64)  # arrived, rank, slots held, paths waiting
        self._num_jobs = 0  # that ever came
        self.for_slots, self.for_chunks = FairQueue(), FairQueue()  # by account
        self.num_waiting = 0  # paths, of all jobs

    def __getitem__(self, generation: Generation) -> Job:
        return self._by_key[generation.job]

    def join(self, generation: Generation) -> Job:
        """Note one more series of a job."""
        if generation.job not in self._by_key:
            if not self._free:
                self._grow()
            account, rank = self._free.pop(), generation.rank
            self._by_key[generation.job] = self._by_account[account] = Job(account, rank)
            self._num_jobs += 1
            self._counts[:, account] = self._num_jobs, rank, 0, 0
            for queue in (self.for_slots, self.for_chunks):
                queue.open(account, rank)
        job = self[generation]
        job.num_series += 1
        return job

    def leave(self, generation: Generation) -> None:
        """Note the end of a series; its job is forgotten with the last."""
        job = self[generation]
        job.num_series -= 1
        if not job.num_series:
            del self._by_key[generation.job]
            self._by_account[job.account] = None
            for queue in (self.for_slots, self.for_chunks):
                queue.close(job.account, job.rank)
            self._free.append(job.account)

    def count(self, job: Job, *, held: int = 0, waiting: int = 0) -> None:
        """Note that a job has more paths that hold a slot, or wait for one; or fewer."""
        self.num_waiting += waiting
        job.num_held, job.num_waiting = job.num_held + held, job.num_waiting + waiting
        self._counts[2:, job.account] = job.num_held, job.num_waiting
        is_there = job.num_held + job.num_waiting > 0
        self.for_slots.count(job.account, job.rank, lacks=job.num_waiting > 0, competes=is_there)

    def count_in_chunks(self, job: Job, num_added: int) -> None:
        """Note that a job has more sequences that are computed in chunks; or fewer."""
        job.num_in_chunks += num_added
        is_in_chunks = job.num_in_chunks > 0
        self.for_chunks.count(job.account, job.rank, lacks=is_in_chunks, competes=is_in_chunks)

    def num_suspended_paths(self) -> int:
        """Paths that have bars, and wait for a slot to go on."""
        num_paths = 0
        for job in self._by_key.values():
            for sequence in job.suspended:
                num_paths += sequence.num_paths if sequence.num_generated else 0
        return num_paths

    def num_held(self, rank: int) -> int:
        """Slots that the jobs of a class hold."""
        return int(self._counts[2, self._counts[1] == rank].sum())

    def columns(self) -> JobColumns:
        """What is counted of all jobs, by account. Accounts without a job want no slots."""
        arrived, rank, held, waiting = self._counts
        return JobColumns(arrived, rank, self.for_slots.service, held, held + waiting)

    def above_zero(
        self, amounts: NDArray[np.int64], keys: tuple[NDArray[Any], ...]
    ) -> Iterator[tuple[Job, int]]:
        """The jobs whose amount is above zero, with it, ordered by the last of the keys first."""
        accounts = np.flatnonzero(amounts > 0)
        for account in accounts[np.lexsort(np.stack(keys)[:, accounts])].tolist():
            job = self._by_account[account]
            assert job is not None  # accounts without one hold and want nothing
            yield job, int(amounts[account])

    def _grow(self) -> None:
        num_before = len(self._by_account)
        num_jobs = max(64, num_before)  # as many again
        self._free += range(num_before, num_before + num_jobs)
        self._by_account += [None] * num_jobs
        self._counts = np.pad(self._counts, ((0, 0), (0, num_jobs)))
        for queue in (self.for_slots, self.for_chunks):
            queue.grow(num_jobs)


def fair_shares(jobs: JobColumns, num_slots: int) -> NDArray[np.float64]:
    """Each job's fair share of the slots; none for those that wait for their turn."""
    classes = _by_class(jobs, jobs.wanted > 0)
    of_classes = _max_min(
        np.array([jobs.wanted[members].sum() for members in classes]),
        WEIGHTS[: len(classes)].astype(np.float64),
        num_slots,
    )
    shares = np.zeros(len(jobs.rank))
    least = np.minimum(jobs.wanted, min(LEAST_SLOTS, num_slots // 4))
    for members, of_class in zip(classes, of_classes, strict=True):
        served = members
        if least[members].sum() > of_class and least.max() > 1:
            in_turn = members[np.lexsort((jobs.arrived[members], jobs.turn[members]))]
            num_served = np.searchsorted(np.cumsum(least[in_turn]), of_class + 1e-9, side="right")
            uses_all = jobs.wanted[in_turn[:num_served]].sum() >= of_class
            served = in_turn[: num_served if uses_all else num_served + 1]
        shares[served] = _max_min(jobs.wanted[served], np.ones(len(served)), of_class)
    return shares


def slot_targets(jobs: JobColumns, num_slots: int, turn: int = 0) -> NDArray[np.int64]:
    """How many slots each job should hold: its share in whole slots, and a part of what is left.

    ``turn`` decides which classes have the slots that they cannot divide. Over many turns each has its share.
    """
    shares = fair_shares(jobs, num_slots)
    targets = (shares + 1e-9).astype(np.int64)
    without = _by_class(jobs, (targets == 0) & (shares > 0))
    if without:
        quotas = _max_min(
            np.array([len(members) for members in without]),
            np.array([shares[members].sum() for members in without]),
            num_slots - targets.sum(),
        )
        # Systematic sampling: each class gets its quota, rounded up or down, and together they get all slots.
        ends = np.floor(np.cumsum(quotas) + turn * GOLDEN_RATIO % 1 + 1e-9).astype(np.int64)
        for members, num in zip(without, np.diff(ends, prepend=0), strict=True):
            order = np.lexsort((jobs.arrived[members], jobs.turn[members]))
            targets[members[order[:num]]] = 1
    for most, keys in ((jobs.held, (jobs.arrived,)), (jobs.wanted, (jobs.arrived, jobs.service, jobs.rank))):
        left = num_slots - targets.sum()
        lacking = np.maximum(most - targets, 0)
        if left > 0 and lacking.any():
            order = np.lexsort(keys)
            targets[order] += np.diff(np.minimum(np.cumsum(lacking[order]), left), prepend=0)
    return targets


def _by_class(jobs: JobColumns, are_meant: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
    """The indices of some jobs by class, the highest first, of classes that have any of them."""
    classes = (np.flatnonzero(are_meant & (jobs.rank == rank)) for rank in range(len(PRIORITIES)))
    return [members for members in classes if len(members)]


def _max_min(wanted: NDArray[np.int64], weights: NDArray[np.float64], total: float) -> NDArray[np.float64]:
    """Divide ``total`` by weight; nobody gets more than wanted, and the others share what is left."""
    order = np.argsort(wanted / weights)
    ordered, ordered_weights = wanted[order], weights[order]
    left = total - (np.cumsum(ordered) - ordered)
    by_weight = left / np.cumsum(ordered_weights[::-1])[::-1]
    lacks = ordered > by_weight * ordered_weights
    level = by_weight[lacks.argmax()] if lacks.any() else np.inf
    return np.minimum(wanted, level * weights)
