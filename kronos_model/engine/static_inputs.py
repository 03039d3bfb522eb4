"""The inputs of a decode step of fixed shape: a few arrays, filled on the host and copied to the device."""

from collections import Counter
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from kronos_model.engine.reads import newest_bar, num_bars_seen, prompt_span
from kronos_model.engine.sampling import MIN_TEMPERATURE
from kronos_model.engine.sequence import Sequence
from kronos_model.engine.slots import num_prompt_slots

BAR_BLOCK: Final = 128
"""Rows read at least so many bars, or twice as many, and so on."""
MIN_ROWS: Final = 4
MAX_ROWS_QUADRUPLED: Final = 64
"""Numbers of rows grow fourfold up to this, then twofold: a few rows more cost less than a launch."""

ROW_COLUMNS: Final = (
    "newest",  # index of the newest of a row's own bars
    "position",  # in the window, of that bar
    "bar",  # of the slot, where its keys and values go
    "seen",  # bars of the slot that the row sees, from the first
    "lead",  # first slot of the sequence
    "seed",
    "path",
    "top_k",
    "prompt",  # index of the shared prompt; −1 for none
    "member",  # which of its rows this is
)
CHANGING_COLUMNS: Final = 4
"""The first columns, which change from step to step; the others change with the sequences only."""


class Shape(NamedTuple):
    """The sizes that a step is recorded for."""

    rows: int
    bars: int  # read by each row, of its slot
    prompts: int = 0
    prompt_bars: int = 0  # read of each prompt
    rows_per_prompt: int = 0


def shape_for(sequences: tuple[Sequence, ...], num_slots: int, max_context: int) -> Shape:
    """The smallest shape that holds a step with these sequences.

    Each size is one of a few, and none exceeds what exists.
    """
    shared = [one for one in sequences if one.shares_prompt]
    num_rows = 1 + max(max(one.slots) for one in sequences)
    rows = min(_row_size(num_rows), num_slots)
    bars = min(_bar_size(max(num_bars_seen(one) for one in sequences)), max_context)
    if not shared:
        return Shape(rows, bars)
    num_prompts = 1 + max(one.prompt_slot for one in shared) - num_slots
    return Shape(
        rows,
        bars,
        min(_row_size(num_prompts), num_prompt_slots(num_slots)) if num_prompts > 1 else 1,
        min(_bar_size(max(one.cached_prompt_length for one in shared)), max_context),
        min(_row_size(max(_rows_by_prompt(shared).values())), num_slots),
    )


def _rows_by_prompt(shared: list[Sequence]) -> Counter[int]:
    rows: Counter[int] = Counter()
    for one in shared:
        rows[one.prompt_slot] += one.num_paths
    return rows


def usual_shapes(num_slots: int, max_context: int) -> list[Shape]:
    """The shapes of any number of single paths, and of one series with all the paths."""
    counts = sorted({min(_row_size(count), num_slots) for count in range(1, num_slots + 1)})
    bars = sorted({min(_bar_size(count), max_context) for count in range(1, max_context + 1)})
    alone = [Shape(rows, most) for rows in counts for most in bars]
    shared = [Shape(rows, bars[0], 1, most, rows) for rows in counts for most in bars]
    return alone + shared


def _bar_size(count: int) -> int:
    size = BAR_BLOCK
    while size < count:
        size *= 2
    return size


def _row_size(count: int) -> int:
    size = MIN_ROWS
    while size < count:
        size *= 4 if size < MAX_ROWS_QUADRUPLED else 2
    return size


class RowTable:
    """The columns of a step's rows, on the host, while the same sequences run in one shape."""

    def __init__(
        self, sequences: tuple[Sequence, ...], shape: Shape, num_slots: int, max_context: int
    ) -> None:
        self.sequences, self.shape = sequences, shape
        self._slots = np.array([slot for one in sequences for slot in one.slots], dtype=np.int64)
        self._counts = [one.num_paths for one in sequences]
        self._shared = [one for one in sequences if one.shares_prompt]
        self._prompts = np.array([one.prompt_slot - num_slots for one in self._shared], dtype=np.int64)

        rows = np.zeros((len(ROW_COLUMNS), shape.rows), dtype=np.int64)
        columns = dict(zip(ROW_COLUMNS, rows, strict=True))
        # A row without a path: its tokens and keys go where nothing reads them, and it sees its first bar.
        columns["newest"][:] = max_context + 1
        columns["bar"][:] = max_context
        columns["seen"][:] = 1
        columns["prompt"][:] = -1
        self.sampling = np.ones((2, shape.rows), dtype=np.float32)
        self.prompt_rows = np.zeros((shape.prompts, shape.rows_per_prompt), dtype=np.int64)
        for one in sequences:
            slots, params = list(one.slots), one.request.sampling
            columns["lead"][slots] = slots[0]
            columns["seed"][slots] = params.seed
            columns["path"][slots] = one.first_path + np.arange(len(slots))
            columns["top_k"][slots] = params.top_k
            self.sampling[:, slots] = [[max(params.temperature, MIN_TEMPERATURE)], [params.top_p]]
        num_members: Counter[int] = Counter()
        for prompt, one in zip(self._prompts, self._shared, strict=True):
            members = num_members[prompt] + np.arange(one.num_paths)
            num_members[prompt] += one.num_paths
            columns["prompt"][list(one.slots)] = prompt
            columns["member"][list(one.slots)] = members
            self.prompt_rows[prompt, members] = one.slots
        self.changing, self.lasting = rows[:CHANGING_COLUMNS], rows[CHANGING_COLUMNS:]
        self.prompt_spans = np.zeros((2, shape.prompts), dtype=np.int64)
        self.prompt_spans[1] = 1
        self.refresh()

    def refresh(self) -> None:
        """Update the changing columns to where the sequences are now."""
        now = [
            (one.num_generated, one.newest_position, newest_bar(one), num_bars_seen(one))
            for one in self.sequences
        ]
        if now:
            self.changing[:, self._slots] = np.repeat(np.array(now).T, self._counts, axis=1)
        spans = [prompt_span(one) for one in self._shared]
        if spans:
            self.prompt_spans[:, self._prompts] = [
                [first for first, _ in spans],
                [last for _, last in spans],
            ]


@dataclass(frozen=True)
class StepInputs:
    """The same in tensors on the device, which stay where they are. R rows, G prompts, S rows of each."""

    changing: Tensor  # (CHANGING_COLUMNS, R) int64, by the names in ROW_COLUMNS
    lasting: Tensor  # (the other columns, R) int64
    sampling: Tensor  # (2, R), temperature and top_p
    prompt_spans: Tensor  # (2, G) int64, first and last bar
    prompt_rows: Tensor  # (G, S) int64

    @classmethod
    def of(cls, table: RowTable, device: torch.device) -> Self:
        """New tensors."""
        arrays = (table.changing, table.lasting, table.sampling, table.prompt_spans, table.prompt_rows)
        return cls(*(torch.from_numpy(array).to(device, copy=True) for array in arrays))

    def columns(self) -> dict[str, Tensor]:
        """Each column (R,) by its name."""
        return dict(zip(ROW_COLUMNS, (*self.changing, *self.lasting), strict=True))

    def copy_all(self, table: RowTable) -> None:
        """Take over what lasts, too."""
        self.copy_changing(table)
        for mine, theirs in (
            (self.lasting, table.lasting),
            (self.sampling, table.sampling),
            (self.prompt_rows, table.prompt_rows),
        ):
            mine.copy_(torch.from_numpy(theirs))

    def copy_changing(self, table: RowTable) -> None:
        """Take over what changes from step to step."""
        self.changing.copy_(torch.from_numpy(table.changing))
        if table.shape.prompts:
            self.prompt_spans.copy_(torch.from_numpy(table.prompt_spans))
