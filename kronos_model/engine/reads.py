"""Which parts of the cache a decode step reads, in as few and as large reads as pay. No torch.

Rows are the paths of a step in order. Paths whose slots lie side by side are read together, padded to the
widest of them, unless the padding costs more than another read.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from kronos_model.engine.sequence import Sequence

Span = tuple[int, int]
"""Bars ``[first, last)`` of a slot."""

MAX_PADDING_BARS = 256
"""Of one read: what reading them takes about as long as another call of the attention kernel."""


@dataclass(frozen=True)
class OwnRead:
    """Each row on its own slot: rows ``[first_row, last_row)`` have slots from ``first_slot`` on.

    ``spans`` says for each row what of ``bars`` is its own; None where all of it is, for every row.
    """

    first_row: int
    last_row: int
    first_slot: int
    bars: Span
    spans: tuple[tuple[Span, ...], ...] | None


@dataclass(frozen=True)
class PromptRead:
    """The bars of a prompt, in ``slot``, for all rows ``[first_row, last_row)`` at once."""

    first_row: int
    last_row: int
    slot: int
    bars: Span


def newest_position(sequence: Sequence) -> int:
    """Position in the window of the bar that the next step puts in; beyond the context under "rolling"."""
    position = sequence.prompt_length + sequence.num_generated
    return position - sequence.cached_from


def plan_prompt_reads(sequences: Iterable[Sequence]) -> tuple[PromptRead, ...]:
    """What several paths share. A single path reads its prompt with its own bars."""
    reads = []
    row = 0
    for sequence in sequences:
        forgotten = max(0, newest_position(sequence) + 1 - sequence.max_context)
        bars = forgotten, sequence.prompt_length - sequence.cached_from
        if sequence.num_paths > 1 and bars[0] < bars[1]:
            reads.append(PromptRead(row, row + sequence.num_paths, sequence.slots[0], bars))
        row += sequence.num_paths
    return tuple(reads)


def own_spans(sequence: Sequence) -> tuple[Span, ...]:
    """What each path reads of its own slot, the newest bar included."""
    end = newest_position(sequence) + 1
    first = 0 if sequence.num_paths == 1 else sequence.prompt_length - sequence.cached_from
    if end <= sequence.max_context:
        return ((first, end),)
    # The cache has rolled: what came after its last bar is at its front.
    if first == 0:
        return ((0, sequence.max_context),)
    return (0, end - sequence.max_context), (first, sequence.max_context)


def plan_own_reads(sequences: Iterable[Sequence]) -> tuple[OwnRead, ...]:
    """What every path reads of its own slot."""
    reads: list[OwnRead] = []
    open_read: _OpenRead | None = None
    row = 0
    for sequence in sequences:
        spans = own_spans(sequence)
        for slot in sequence.slots[: sequence.num_paths]:
            if open_read is None or not open_read.accepts(slot, spans):
                if open_read is not None:
                    reads.append(open_read.close())
                open_read = _OpenRead(row, slot)
            open_read.add(spans)
            row += 1
    if open_read is not None:
        reads.append(open_read.close())
    return tuple(reads)


class _OpenRead:
    """A read that may still grow."""

    def __init__(self, first_row: int, first_slot: int) -> None:
        self._first_row, self._first_slot = first_row, first_slot
        self._rows: list[tuple[Span, ...]] = []
        self._first, self._last = 1 << 62, 0
        self._used = 0

    def accepts(self, slot: int, spans: tuple[Span, ...]) -> bool:
        if slot != self._first_slot + len(self._rows):
            return False
        first, last = min(self._first, spans[0][0]), max(self._last, spans[-1][1])
        used = self._used + sum(end - start for start, end in spans)
        return (last - first) * (len(self._rows) + 1) - used <= MAX_PADDING_BARS

    def add(self, spans: tuple[Span, ...]) -> None:
        self._rows.append(spans)
        self._first, self._last = min(self._first, spans[0][0]), max(self._last, spans[-1][1])
        self._used += sum(end - start for start, end in spans)

    def close(self) -> OwnRead:
        bars = self._first, self._last
        is_padded = self._used < (self._last - self._first) * len(self._rows)
        last_row = self._first_row + len(self._rows)
        return OwnRead(
            self._first_row, last_row, self._first_slot, bars, tuple(self._rows) if is_padded else None
        )
