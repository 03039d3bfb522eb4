"""Plans which parts of the cache a decode step reads: few large reads instead of many small ones. No torch.

Rows are the paths of a step in order. Paths in neighbouring slots are read together, padded to the widest of
them, unless the padding costs more than another read. A read ends with a whole block of ``READ_BLOCK_BARS``:
then the bars that a row does not see change no bit of its result.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from kronos_model.engine.sequence import Sequence

Span = tuple[int, int]
"""Bars ``[first, last)`` of a slot."""

READ_BLOCK_BARS = 16
"""The widest vector. PyTorch's attention rounds exponentials beyond the last whole vector in another way."""

MAX_PADDING_BARS = 256
"""The most padding of one read: reading so many bars takes about as long as another call of the kernel."""


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


def prompt_span(sequence: Sequence) -> Span:
    """The bars of a shared prompt that a step sees: under "rolling" the oldest are dropped."""
    forgotten = max(0, sequence.newest_position + 1 - sequence.max_context)
    return min(forgotten, sequence.cached_prompt_length), sequence.cached_prompt_length


def num_bars_seen(sequence: Sequence) -> int:
    """Bars of its own slot that each path sees, with the newest; all of them after the cache has rolled."""
    return min(sequence.own_start + sequence.num_generated + 1, sequence.max_context)


def newest_bar(sequence: Sequence) -> int:
    """Where in its slot each path's newest bar goes; it wraps around after the cache has rolled."""
    return (sequence.own_start + sequence.num_generated) % sequence.max_context


def plan_prompt_reads(sequences: Iterable[Sequence]) -> tuple[PromptRead, ...]:
    """The reads of shared prompts: one for neighbouring rows that see the same bars of one.

    A single path reads its prompt together with its own bars.
    """
    reads: list[PromptRead] = []
    row = 0
    for sequence in sequences:
        bars = prompt_span(sequence)
        last_row = row + sequence.num_paths
        if sequence.shares_prompt and bars[0] < bars[1]:
            first_row = row
            if reads and (reads[-1].last_row, reads[-1].slot, reads[-1].bars) == (
                row,
                sequence.prompt_slot,
                bars,
            ):
                first_row = reads.pop().first_row
            reads.append(PromptRead(first_row, last_row, sequence.prompt_slot, bars))
        row = last_row
    return tuple(reads)


def plan_own_reads(sequences: Iterable[Sequence]) -> tuple[OwnRead, ...]:
    """The reads of every path's own slot."""
    reads: list[OwnRead] = []
    first_row, first_slot = 0, 0
    seen: list[int] = []  # by row, of the read that may still grow

    def close() -> None:
        if seen:
            num_bars = padded_bars(max(seen))
            is_padded = min(seen) < num_bars
            last_row = first_row + len(seen)
            reads.append(
                OwnRead(first_row, last_row, first_slot, num_bars, tuple(seen) if is_padded else None)
            )

    for sequence in sequences:
        num_bars = num_bars_seen(sequence)
        for slot in sequence.slots:
            rows = [*seen, num_bars]
            is_next = slot == first_slot + len(seen)
            if not is_next or max(rows) * len(rows) - sum(rows) > MAX_PADDING_BARS:
                close()
                first_row, first_slot, seen = first_row + len(seen), slot, []
            seen.append(num_bars)
    close()
    return tuple(reads)
