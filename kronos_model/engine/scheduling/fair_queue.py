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
        self._competes = np.zeros(0, dtype=np.bool_)
        self._lacks = np.zeros(0, dtype=np.bool_)
        self._num_competing = np.zeros(len(PRIORITIES), dtype=np.int64)
        self._virtual_time = np.zeros(len(PRIORITIES))

    def grow(self, num_jobs: int) -> None:
        """Make accounts for so many more jobs."""
        self.service = np.pad(self.service, (0, num_jobs))
        self._ranks = np.pad(self._ranks, (0, num_jobs))
        self._competes = np.pad(self._competes, (0, num_jobs))
        self._lacks = np.pad(self._lacks, (0, num_jobs))

    def open(self, account: int, rank: int) -> None:
        """Begin an account for a new job."""
        self._ranks[account] = rank

    def close(self, account: int) -> None:
        """End the account of a job that left."""
        self.count(account, lacks=False, competes=False)
        self.service[account] = 0

    def count(self, account: int, *, lacks: bool, competes: bool) -> None:
        """Note whether a job lacks something, and whether it competes: has something, or lacks it."""
        if (lacks, competes) == (self._lacks[account], self._competes[account]):
            return
        rank = self._ranks[account]
        if lacks and not self._lacks[account]:
            self._virtual_time[rank] = max(self._virtual_time[rank], self._least(rank))
            self.service[account] = max(self.service[account], self._virtual_time[rank])
        self._num_competing[rank] += int(competes) - int(self._competes[account])
        self._lacks[account], self._competes[account] = lacks, competes

    def serve(self, account: int, num_bars: int) -> None:
        """Note bars that were computed for a job."""
        self.service[account] += num_bars
        rank = self._ranks[account]
        self._virtual_time[rank] += num_bars / max(1, self._num_competing[rank])

    def serve_each(self, accounts: NDArray[np.int64]) -> None:
        """Note a bar for each of these, which may name a job several times."""
        num_bars = np.bincount(accounts, minlength=len(self.service))
        self.service += num_bars
        of_classes = np.bincount(self._ranks, num_bars, len(PRIORITIES))
        self._virtual_time += of_classes / np.maximum(1, self._num_competing)

    def _least(self, rank: int) -> float:
        """The least service of those that lack something; if none does, the most: nobody is owed anything."""
        is_of_class = self._ranks == rank
        lacking = self.service[is_of_class & self._lacks]
        return float(lacking.min() if len(lacking) else self.service[is_of_class].max())
