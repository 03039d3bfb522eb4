"""The inputs of a decode step of fixed shape: copied to the device for a new batch, else advanced there."""

from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kronos_model.engine.path_table import CHANGING_COLUMNS, COLUMNS, Batch
from kronos_model.engine.slots import num_prompt_slots

BAR_BLOCK: Final = 128
"""Rows read at least so many bars, or twice as many, and so on."""
MIN_ROWS: Final = 4
MAX_ROWS_QUADRUPLED: Final = 64
"""Numbers of rows grow fourfold up to this, then twofold: a few rows more cost less than a launch."""


class Shape(NamedTuple):
    """The sizes that a step is recorded for."""

    rows: int
    bars: int = 0  # read by each row, of its slot; 0 if a kernel reads what each row sees
    prompts: int = 0
    prompt_bars: int = 0  # read of each prompt
    rows_per_prompt: int = 0


def shape_for(batch: Batch) -> Shape:
    """The smallest shape that holds a step with these sequences.

    Each size is one of a few, and none exceeds what exists.
    """
    num_slots, max_context = batch.table.num_slots, batch.table.max_context
    columns = batch.table.columns
    rows = min(_row_size(1 + int(batch.slots.max())), num_slots)
    bars = min(_bar_size(int(columns["seen"][batch.slots].max())), max_context)
    prompts = columns["prompt"][batch.slots]
    num_prompts = 1 + int(prompts.max())
    if not num_prompts:
        return Shape(rows, bars)
    return Shape(
        rows,
        bars,
        min(_row_size(num_prompts), num_prompt_slots(num_slots)) if num_prompts > 1 else 1,
        min(_bar_size(int(columns["prompt_bars"][batch.slots].max())), max_context),
        min(_row_size(int(np.bincount(prompts[prompts >= 0]).max())), num_slots),
    )


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


class StepInputs:
    """The columns of a batch on the device, in tensors that stay where they are, for steps of any shape.

    R rows, G prompts, S rows of each.
    """

    def __init__(self, num_slots: int, max_context: int, device: torch.device) -> None:
        num_prompts = num_prompt_slots(num_slots)
        self._max_context = max_context
        self._values = torch.zeros(len(COLUMNS) + 1, num_slots, dtype=torch.int64, device=device)
        self._sampling = torch.ones(2, num_slots, device=device)
        self._prompt_spans = torch.zeros(2, num_prompts, dtype=torch.int64, device=device)
        self._prompt_rows = torch.zeros(num_prompts, num_slots, dtype=torch.int64, device=device)

    def columns(self, shape: Shape) -> dict[str, Tensor]:
        """Each column (R,) by its name. ``member``: which of its prompt's rows this is."""
        names = (*COLUMNS, "member")
        return dict(zip(names, self._values[:, : shape.rows], strict=True))

    def sampling(self, shape: Shape) -> Tensor:
        """(2, R), temperature and top_p."""
        return self._sampling[:, : shape.rows]

    def prompt_spans(self, shape: Shape) -> Tensor:
        """(2, G), first and last bar that is seen; the first may be negative."""
        return self._prompt_spans[:, : shape.prompts]

    def prompt_rows(self, shape: Shape) -> Tensor:
        """(G, S)."""
        return self._prompt_rows[: shape.prompts, : shape.rows_per_prompt]

    def fill(self, batch: Batch, shape: Shape) -> None:
        """Take over where the paths of a batch are now."""
        table, slots = batch.table, batch.slots
        values = np.zeros(self._values.shape, dtype=np.int64)
        values[:-1] = table.unused
        values[:-1, slots] = table.values[:, slots]
        columns = dict(zip(COLUMNS, values[:-1], strict=True))
        if shape.prompts:
            # Rows of the same prompt one after the other, and where in its group each is.
            sharing = slots[columns["prompt"][slots] >= 0]
            sharing = sharing[np.argsort(columns["prompt"][sharing], kind="stable")]
            prompts = columns["prompt"][sharing]
            members = np.arange(len(prompts)) - np.searchsorted(prompts, prompts)
            values[-1, sharing] = members
            rows = np.zeros(self.prompt_rows(shape).shape, dtype=np.int64)
            rows[prompts, members] = sharing
            _copy(rows, self.prompt_rows(shape))
            spans = np.zeros((2, shape.prompts), dtype=np.int64)
            spans[0, prompts] = columns["position"][sharing] + 1 - table.max_context
            spans[1, prompts] = columns["prompt_bars"][sharing]
            _copy(spans, self.prompt_spans(shape))
        _copy(values, self._values)
        _copy(table.sampling, self._sampling)

    def advance(self, shape: Shape) -> None:
        """Go on by a bar, as ``PathTable.advance``."""
        columns = self.columns(shape)
        self._values[: len(CHANGING_COLUMNS), : shape.rows] += columns["is_used"]
        columns["bar"].remainder_(columns["wraps_at"])
        if shape.prompts:
            self.prompt_spans(shape)[0] += 1


def _copy(array: NDArray[np.generic], to: Tensor) -> None:
    """Without waiting for the device: PyTorch keeps pinned memory until it is copied."""
    source = torch.from_numpy(array)
    to.copy_(source.pin_memory() if to.is_cuda else source, non_blocking=True)
