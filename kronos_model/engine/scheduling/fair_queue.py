"""Fair queueing between the jobs of a class (Demers, Keshav and Shenker, 1989). No torch."""

import numpy as np
from numpy.typing import NDArray

from kronos_model.engine.generation import PRIORITIES


class FairQueue:
    """Who is next for what jobs compete for: in each class, the job that had the least service.

    Service is counted in bars, by account. A class's virtual time is the service of a job that always
    competed and had an even share. A job that wanted nothing for a while is not owed anything for that time.
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
        """The least service of those that lack something; if none does, the most: nobody is owed anything."""
        lacking = self.service[self._lacking == rank]
        return float(lacking.min() if len(lacking) else self.service[self._ranks == rank].max())
