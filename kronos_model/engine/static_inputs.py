"""What a decode step of fixed shape is told: a few arrays, filled on the host and copied to the device."""

from dataclasses import dataclass
from typing import Final, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kronos_model.engine.reads import newest_position, own_spans, plan_prompt_reads
from kronos_model.engine.sequence import Sequence

BAR_BLOCK: Final = 128
"""Bars that rows read grow by."""


ROW_COLUMNS: Final = (
    "newest",  # index of the newest of a row's own bars
    "position",  # in the window, of that bar
    "bar",  # of the slot, where its keys and values go
    "lead",  # first slot of the sequence
    "first",  # bars of the slot that the row reads: [first, last) and [0, wrapped)
    "last",
    "wrapped",
    "seed",
    "path",
    "top_k",
    "prompt",  # index of the shared prompt; −1 for none
    "member",  # which of its rows this is
)


class Shape(NamedTuple):
    """What a recorded step is for: rows, bars that they read, shared prompts, and rows a prompt."""

    rows: int
    bars: int
    prompts: int
    rows_per_prompt: int


def shape_for(num_rows: int, num_bars: int, paths: list[int], *, max_rows: int, max_bars: int) -> Shape:
    """The smallest shape that holds this many rows and bars, and prompts shared by so many ``paths`` each."""
    prompts, most = (0, 0) if not paths else (_power_of_two(len(paths)), _power_of_two(max(paths)))
    bars = -(-num_bars // BAR_BLOCK) * BAR_BLOCK
    return Shape(min(_power_of_two(num_rows), max_rows), min(bars, max_bars), prompts, most)


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()


@dataclass(frozen=True)
class StepInputs:
    """What changes from step to step, in tensors that stay where they are.

    R rows, G shared prompts, S rows of each.
    """

    rows: Tensor  # (num_columns, R) int64, by the names in ROW_COLUMNS
    sampling: Tensor  # (2, R), temperature and top_p
    prompts: Tensor  # (3, G) int64: slot, first and last bar
    prompt_rows: Tensor  # (G, S) int64

    @classmethod
    def blank(cls, shape: Shape, device: torch.device) -> Self:
        """Zeros."""

        def zeros(*sizes: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(sizes, dtype=dtype, device=device)

        return cls(
            zeros(len(ROW_COLUMNS), shape.rows),
            zeros(2, shape.rows, dtype=torch.float32),
            zeros(3, shape.prompts),
            zeros(shape.prompts, shape.rows_per_prompt),
        )

    def copy(self, arrays: "StepArrays") -> None:
        """Take over what the host has."""
        for mine, theirs in (
            (self.rows, arrays.rows),
            (self.sampling, arrays.sampling),
            (self.prompts, arrays.prompts),
            (self.prompt_rows, arrays.prompt_rows),
        ):
            mine.copy_(torch.from_numpy(theirs))


@dataclass(frozen=True)
class StepArrays:
    """What changes from step to step, on the host: the fields of ``StepInputs``."""

    rows: NDArray[np.int64]
    sampling: NDArray[np.float32]
    prompts: NDArray[np.int64]
    prompt_rows: NDArray[np.int64]

    @classmethod
    def of(cls, sequences: tuple[Sequence, ...], shape: Shape, max_context: int) -> Self:
        """What a step with these sequences reads and writes."""
        rows = np.zeros((len(ROW_COLUMNS), shape.rows), dtype=np.int64)
        columns = dict(zip(ROW_COLUMNS, rows, strict=True))
        # A row without a path: its tokens and its keys go where nobody reads, and it sees its first bar.
        columns["newest"][:] = max_context + 1
        columns["bar"][:] = max_context
        columns["last"][:] = 1
        columns["prompt"][:] = -1
        sampling = np.ones((2, shape.rows), dtype=np.float32)
        prompts = np.zeros((3, shape.prompts), dtype=np.int64)
        prompts[2] = 1
        prompt_rows = np.zeros((shape.prompts, shape.rows_per_prompt), dtype=np.int64)

        for sequence in sequences:
            slots, params = list(sequence.slots), sequence.request.sampling
            position = newest_position(sequence)
            *wrapped, (first, last) = own_spans(sequence)
            values: dict[str, int | NDArray[np.int64]] = {
                "newest": sequence.num_generated,
                "position": position,
                "bar": position % max_context,
                "lead": slots[0],
                "first": first,
                "last": last,
                "wrapped": wrapped[0][1] if wrapped else 0,
                "seed": params.seed,
                "path": sequence.first_path + np.arange(len(slots)),
                "top_k": params.top_k,
            }
            for name, value in values.items():
                columns[name][slots] = value
            sampling[:, slots] = np.array([[params.temperature], [params.top_p]])
        by_row = [slot for sequence in sequences for slot in sequence.slots]
        for index, read in enumerate(plan_prompt_reads(sequences)):
            slots = by_row[read.first_row : read.last_row]
            prompts[:, index] = read.slot, *read.bars
            prompt_rows[index, : len(slots)] = slots
            columns["prompt"][slots] = index
            columns["member"][slots] = np.arange(len(slots))
        return cls(rows, sampling, prompts, prompt_rows)
