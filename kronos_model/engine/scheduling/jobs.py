"""The jobs that have series in the engine: what each holds, waits for, and was served. No torch.

What is counted of a job is in columns, so that a step of many jobs costs little more than one of few.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronos_model.engine.generation import Generation
from kronos_model.engine.scheduling.shares import FairQueue, JobColumns
from kronos_model.engine.sequence import Sequence


@dataclass(eq=False)
class Job:
    """What one job runs, and what it places next: what is suspended, then what has not started.

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
