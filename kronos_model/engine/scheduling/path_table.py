"""What a decode step needs of each path, in columns by slot, and which parts of the cache it reads. No torch.

The columns are patched where a sequence joins or leaves, and advance with each bar. So a step with many paths
costs the host little more than one with few.

The rows of a step are its paths in order. Paths in neighbouring slots are read together, padded to the widest
of them, unless the padding costs more than another read. A read ends with a whole block of
``READ_BLOCK_BARS``: then the bars that a row does not see change no bit of its result.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from kronos_model.engine.generation import MIN_TEMPERATURE
from kronos_model.engine.sequence import Sequence

Item = TypeVar("Item")
Span = tuple[int, int]
"""Bars ``[first, last)`` of a slot."""

READ_BLOCK_BARS = 16
"""The widest vector. PyTorch's attention rounds exponentials beyond the last whole vector in another way."""
MAX_PADDING_BARS = 256
"""The most padding of one read: reading so many bars takes about as long as another call of the kernel."""

CHANGING_COLUMNS: Final = (
    "newest",  # index of the newest of the path's own bars
    "position",  # in the window, of that bar; "rolling" exceeds the context
    "bar",  # of the slot, where its keys and values go
    "seen",  # bars of the slot that the path sees, from the first; all of them beyond the context
)
COLUMNS: Final = (
    *CHANGING_COLUMNS,
    "is_used",  # 1 if a path decodes in this slot
    "wraps_at",  # the bar after the slot's last one; after the cache has rolled, its first bar is next
    "lead",  # first slot of the sequence
    "prompt",  # index of the shared prompt; −1 for none
    "prompt_bars",  # of the shared prompt
    "top_k",
    "seed",
    "path",
)


@dataclass(frozen=True, eq=False)
class Batch:
    """Sequences that decode together: R rows, path after path.

    It is the same object as long as the same sequences decode in the same windows.
    """

    table: "PathTable"
    sequences: tuple[Sequence, ...]
    slots: NDArray[np.int64]  # (R,)

    def part(self, sequences: tuple[Sequence, ...]) -> "Batch":
        """All or some of the sequences."""
        return self if sequences == self.sequences else Batch.from_sequences(self.table, sequences)

    @classmethod
    def from_sequences(cls, table: "PathTable", sequences: tuple[Sequence, ...]) -> "Batch":
        """Sequences that decode in these columns."""
        slots: list[int] = []
        for sequence in sequences:
            slots += sequence.slots
        return cls(table, sequences, np.array(slots, dtype=np.int64))


class PathTable:
    """The sequences that decode, and columns (num_slots,) of their paths.

    A slot that is not used writes its token and keys where nothing reads them, and sees its first bar.
    """

    def __init__(self, num_slots: int, max_context: int) -> None:
        self.num_slots, self.max_context = num_slots, max_context
        spare = {"newest": max_context + 1, "bar": max_context, "wraps_at": max_context + 1}
        unused = spare | {"seen": 1, "prompt": -1}
        self.unused = np.array([[unused.get(name, 0)] for name in COLUMNS], dtype=np.int64)
        self.values = np.repeat(self.unused, num_slots, axis=1)  # (columns, num_slots)
        self.columns = dict(zip(COLUMNS, self.values, strict=True))
        self.sampling = np.ones((2, num_slots), dtype=np.float32)  # temperature and top_p
        self._by_lead: list[Sequence | None] = [None] * num_slots
        self._sequences: tuple[Sequence, ...] | None = ()
        self._batch: Batch | None = None

    def __contains__(self, sequence: Sequence) -> bool:
        return bool(sequence.slots) and self._by_lead[sequence.slots[0]] is sequence

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        """By slot: neighbours in the cache are read in one go."""
        if self._sequences is None:
            self._sequences = tuple(filter(None, self._by_lead))
        return self._sequences

    def join(self, sequence: Sequence) -> None:
        """Let a sequence decode, from where it is now."""
        sampling, slots = sequence.request.sampling, list(sequence.slots)
        prompt_length, newest_bar = sequence.cached_prompt_length, sequence.own_start + sequence.num_generated
        values = {
            "newest": sequence.num_generated,
            "position": prompt_length + sequence.num_generated,
            "bar": newest_bar % self.max_context,
            "seen": newest_bar + 1,
            "is_used": 1,
            "wraps_at": self.max_context,
            "lead": slots[0],
            "prompt": sequence.prompt_slot - self.num_slots if sequence.shares_prompt else -1,
            "prompt_bars": prompt_length if sequence.shares_prompt else 0,
            "top_k": sampling.top_k,
            "seed": sampling.seed,
            "path": sequence.first_path,
        }
        self.values[:, slots] = np.array(itemgetter(*COLUMNS)(values))[:, None]
        self.columns["path"][slots] += np.arange(len(slots))
        self.sampling[:, slots] = [[max(sampling.temperature, MIN_TEMPERATURE)], [sampling.top_p]]
        self._by_lead[slots[0]] = sequence
        self._sequences = self._batch = None

    def leave(self, sequence: Sequence) -> None:
        """Let a sequence decode no longer."""
        self._by_lead[sequence.slots[0]] = None
        self.clear(sequence.slots)

    def clear(self, slots: tuple[int, ...]) -> None:
        """Let the paths in these slots decode no longer."""
        self.values[:, list(slots)] = self.unused
        self._sequences = self._batch = None

    def advance(self, batch: Batch) -> None:
        """Go on by a bar."""
        self.values[: len(CHANGING_COLUMNS), batch.slots] += 1
        self.columns["bar"][batch.slots] %= self.max_context

    def batch_of(self, sequences: tuple[Sequence, ...]) -> Batch:
        """Some or all of the sequences, to be computed together."""
        if self._batch is None or self._batch.sequences != sequences:
            self._batch = Batch.from_sequences(self, sequences)
        return self._batch


@dataclass(frozen=True)
class OwnRead:
    """Each row reads its own slot: rows ``[first_row, last_row)`` have slots from ``first_slot`` on.

    Each row reads the first ``num_bars`` of its slot, a multiple of ``READ_BLOCK_BARS``, and sees the first
    ``seen`` of them; None if every row sees all of them.
    """

    first_row: int
    last_row: int
    first_slot: int
    num_bars: int
    seen: tuple[int, ...] | None


@dataclass(frozen=True)
class PromptRead:
    """All rows ``[first_row, last_row)`` read the bars of a prompt in ``slot`` at once."""

    first_row: int
    last_row: int
    slot: int
    bars: Span


def padded_bars(num_bars: int) -> int:
    """The multiple of ``READ_BLOCK_BARS`` that holds ``num_bars``."""
    return -(-num_bars // READ_BLOCK_BARS) * READ_BLOCK_BARS


def plan_own_reads(batch: Batch) -> list[OwnRead]:
    """The reads of every path's own slot."""
    slots: list[int] = batch.slots.tolist()
    # After the cache has rolled, all bars of a slot are seen.
    seen: list[int] = np.minimum(batch.table.columns["seen"][batch.slots], batch.table.max_context).tolist()
    first_rows: list[int] = []
    widest = total = 0  # of the read that may still grow
    for row, num_bars in enumerate(seen):
        widest, total = max(widest, num_bars), total + num_bars
        is_next = row > 0 and slots[row] == slots[row - 1] + 1
        if not is_next or widest * (row + 1 - first_rows[-1]) - total > MAX_PADDING_BARS:
            first_rows.append(row)
            widest = total = num_bars
    reads = []
    for first_row, last_row in pairwise([*first_rows, len(seen)]):
        by_row = seen[first_row:last_row]
        num_bars = padded_bars(max(by_row))
        hidden = tuple(by_row) if min(by_row) < num_bars else None
        reads.append(OwnRead(first_row, last_row, slots[first_row], num_bars, hidden))
    return reads


def plan_prompt_reads(batch: Batch) -> list[PromptRead]:
    """The reads of shared prompts: one for neighbouring rows that see the same bars of one.

    A single path reads its prompt together with its own bars. Under "rolling" the oldest bars are dropped.
    """
    table, slots = batch.table, batch.slots
    prompts = table.columns["prompt"][slots].tolist()
    if max(prompts, default=-1) < 0:
        return []
    forgotten = (table.columns["position"][slots] + 1 - table.max_context).clip(min=0).tolist()
    lengths = table.columns["prompt_bars"][slots].tolist()
    reads: list[PromptRead] = []
    row = 0
    for sequence in batch.sequences:
        first_row, row = row, row + sequence.num_paths
        slot, bars = table.num_slots + prompts[first_row], (forgotten[first_row], lengths[first_row])
        if prompts[first_row] < 0 or bars[0] >= bars[1]:
            continue
        if reads and (reads[-1].last_row, reads[-1].slot, reads[-1].bars) == (first_row, slot, bars):
            first_row = reads.pop().first_row
        reads.append(PromptRead(first_row, row, slot, bars))
    return reads


def cut(items: Iterable[Item], sizes: Iterable[int], most: int) -> list[list[Item]]:
    """Neighbouring items in groups of at most ``most`` in all; a single item may be larger."""
    groups: list[list[Item]] = []
    total = 0
    for item, size in zip(items, sizes, strict=True):
        total += size
        if not groups or total > most:
            groups.append([])
            total = size
        groups[-1].append(item)
    return groups
