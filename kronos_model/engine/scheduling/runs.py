"""Plans the attention of a batch in which bars follow each other: which of them are one product. No torch."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

Item = TypeVar("Item")
SlotSpan = tuple[int, int, int]
"""A slot, and the bars ``[first, last)`` of it."""

MAX_ROWS: Final = 512
"""The longest run; longer ones are cut."""
MAX_SCORES: Final = 1 << 23
"""The most scores of a group, by head; a single run may have more."""
MAX_KEYS: Final = 1 << 16
"""The most keys of a group, which are copied together: 117 MB of Kronos-base's in bfloat16."""
MAX_WASTED_SCORES: Final = 1 << 18
"""Scores that are computed for nothing in less time than another product takes."""


@dataclass(frozen=True)
class Run:
    """Rows ``[first_row, first_row + num_rows)`` of a batch: bars that follow each other in a window.

    The last of them sees the bars of ``spans`` up to the last ``num_later``, each earlier one a bar less.
    """

    first_row: int
    num_rows: int
    spans: tuple[SlotSpan, ...]
    num_later: int = 0

    @property
    def num_keys(self) -> int:
        """Bars that the last row sees."""
        return sum(last - first for _, first, last in self.spans) - self.num_later

    def parts(self) -> Iterable["Run"]:
        """The same rows, at most ``MAX_ROWS`` in each run."""
        for first in range(0, self.num_rows, MAX_ROWS):
            num_rows = min(MAX_ROWS, self.num_rows - first)
            num_later = self.num_later + self.num_rows - first - num_rows
            yield Run(self.first_row + first, num_rows, self.spans, num_later)


def group_runs(runs: Iterable[Run]) -> list[list[Run]]:
    """Groups of runs that are so alike that padding them at most doubles the work."""
    parts = [part for run in runs for part in run.parts()]
    groups: list[list[Run]] = []
    num_rows = num_keys = num_scores = 0
    for run in sorted(parts, key=lambda one: (one.num_keys, one.num_rows), reverse=True):
        rows = max(num_rows, run.num_rows)
        scores = num_scores + run.num_rows * run.num_keys
        keys = (len(groups[-1]) + 1) * num_keys if groups else 0
        padded = rows * keys
        is_too_large = keys > MAX_KEYS or padded > MAX_SCORES
        if not groups or is_too_large or padded - scores > max(scores, MAX_WASTED_SCORES):
            groups.append([])
            rows, num_keys, scores = run.num_rows, run.num_keys, run.num_rows * run.num_keys
        groups[-1].append(run)
        num_rows, num_scores = rows, scores
    return groups


def cut(items: Iterable[Item], size_of: Callable[[Item], int], most: int) -> list[list[Item]]:
    """Neighbouring items in groups of at most ``most`` in all; a single item may be larger."""
    groups: list[list[Item]] = []
    total = 0
    for item in items:
        total += size_of(item)
        if not groups or total > most:
            groups.append([])
            total = size_of(item)
        groups[-1].append(item)
    return groups
