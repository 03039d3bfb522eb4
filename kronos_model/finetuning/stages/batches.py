"""A stage's batches: windows as tensors, their order, the seeds of the steps, and each process's share.

The order and the seeds are derived from the run's seed. So a resumed run draws as an uninterrupted one does,
without a saved generator state, and several processes draw as one does.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.data import Dataset, Sampler

from kronos_model.bars.columns import COLUMNS, TIME_FEATURES, FloatArray, Instrument, Scaling, time_features
from kronos_model.errors import FinetuningConfigError
from kronos_model.evaluation.windows import Windows
from kronos_model.finetuning.config import StageConfig
from kronos_model.finetuning.config_parts import LookbackRange
from kronos_model.finetuning.stages.stage import Batch
from kronos_model.seeds import seed_from_text
from kronos_model.tokenizer import batch_mean

CHUNK_BARS: Final = 65_536
"""Bars whose time features are computed at once, since the computation is in int64."""
VALIDATION: Final = "validation"


class BarStore:
    """The N bars of I instruments in one array, in the order of the instruments. All datasets share it.

    Attributes:
        bars: (N, 6) float32.
        stamps: their time features, (N, 5) int8.
        first: each instrument's first row, (I,) int64.
        num_bars: each instrument's number of bars, (I,) int64.
        instruments: copies of the given instruments whose ``bars`` are views of the store. Use them instead
            of the given ones, so that bars are in memory only once.
    """

    def __init__(self, instruments: Sequence[Instrument]) -> None:
        self.num_bars: NDArray[np.int64] = np.array([len(each) for each in instruments], dtype=np.int64)
        ends = np.cumsum(self.num_bars)
        self.first: NDArray[np.int64] = ends - self.num_bars
        total = int(self.num_bars.sum())
        self.bars: FloatArray = np.empty((total, len(COLUMNS)), dtype=np.float32)
        self.stamps: NDArray[np.int8] = np.empty((total, len(TIME_FEATURES)), dtype=np.int8)
        kept = []
        for each, first, end in zip(instruments, self.first.tolist(), ends.tolist(), strict=True):
            bars, stamps = self.bars[first:end], self.stamps[first:end]
            bars[:] = each.bars
            for start in range(0, len(each), CHUNK_BARS):
                chunk = slice(start, start + CHUNK_BARS)
                stamps[chunk] = time_features(each.wall[chunk])
            bars.flags.writeable = False
            kept.append(replace(each, bars=bars))
        self.bars.flags.writeable = self.stamps.flags.writeable = False  # all datasets share them
        self.instruments: tuple[Instrument, ...] = tuple(kept)


class WindowDataset(Dataset[dict[str, torch.Tensor]]):
    """Windows of L = lookback + pred_len bars, each scaled by its own lookback and clipped to ±clip.

    ``windows`` refers to the instruments of ``store``. The dataset makes whole batches, so a loader needs a
    ``collate_fn`` that returns its argument. The windows of a batch have one lookback, drawn evenly on a
    logarithmic scale; the bars after it stay the same. The indices of the windows alone decide the draw,
    so a resumed run draws the same.
    """

    def __init__(
        self, store: BarStore, windows: Windows, lookback: LookbackRange, pred_len: int, clip: float
    ) -> None:
        index, longest = windows.instrument_index, lookback.max + pred_len
        if np.any(windows.start < 0) or np.any(windows.start + longest > store.num_bars[index]):
            raise ValueError("a window reaches beyond the bars of its instrument")
        self._store = store
        self._start: NDArray[np.int64] = store.first[index] + windows.start  # (W,)
        self._lookback = lookback
        self._steps = np.arange(longest)
        self._clip = clip

    def __len__(self) -> int:
        return len(self._start)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """One window without the batch dimension."""
        return {name: batch[0] for name, batch in self.__getitems__([index]).items()}

    def __getitems__(self, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        """A batch: ``x`` (B, L, 6) float32, scaled and clipped, and ``stamp`` (B, L, 5) int64."""
        lookback = self._lookback_of(indices)
        steps = self._steps[self._lookback.max - lookback :]
        rows = self._start[np.asarray(indices, dtype=np.int64)][:, None] + steps  # (B, L)
        bars = self._store.bars[rows]  # (B, L, 6)
        x = Scaling.fit(bars[:, :lookback]).apply(bars, self._clip)
        return {
            "x": torch.from_numpy(x),
            "stamp": torch.from_numpy(self._store.stamps[rows].astype(np.int64)),
        }

    def _lookback_of(self, indices: Sequence[int]) -> int:
        shortest, longest = self._lookback.min, self._lookback.max
        if shortest == longest:
            return longest
        share = np.random.default_rng(indices).random()
        lookback: float = shortest * (longest / shortest) ** share
        return round(lookback)


def step_seed(seed: int, stage: str, step: int | str, process: int = 0) -> int:
    """The seed of a step, or of a validation."""
    return seed_from_text(f"{seed}:{stage}:{step}:{process}")


def seed_step(value: int, device: torch.device) -> None:
    """Seed the generators of dropout and sampling. No other device is touched."""
    torch.default_generator.manual_seed(value)
    if device.type == "cuda":
        with torch.cuda.device(device):  # it seeds the current device
            torch.cuda.manual_seed(value)
    elif device.type == "mps":
        torch.mps.manual_seed(value)


def window_order(seed: int, stage: str, epoch: int, num_windows: int, num_drawn: int) -> NDArray[np.int64]:
    """Indices of an epoch's windows, (num_drawn,), drawn from ``num_windows`` without repetition.

    If ``num_drawn`` is larger, the order starts again from its beginning.
    """
    rng = np.random.default_rng(seed_from_text(f"{seed}:{stage}:epoch:{epoch}"))
    return np.resize(rng.permutation(num_windows), num_drawn)


class EpochOrder(Sampler[int]):
    """The order of the windows in the epoch that ``epoch`` is set to, without the first ``num_taken``."""

    def __init__(self, seed: int, stage: str, num_windows: int, num_drawn: int) -> None:
        self._seed, self._stage = seed, stage
        self._num_windows, self._num_drawn = num_windows, num_drawn
        self.epoch = self.num_taken = 0

    def __len__(self) -> int:
        return self._num_drawn - self.num_taken

    def __iter__(self) -> Iterator[int]:
        order = window_order(self._seed, self._stage, self.epoch, self._num_windows, self._num_drawn)
        return map(int, order[self.num_taken :])


def steps_per_epoch(config: StageConfig, stage: str, num_windows: int, windows_per_step: int) -> int:
    """Whole optimiser steps in an epoch. Windows left over may be drawn in another epoch.

    Raises FinetuningConfigError if a step takes more windows than there are.
    """
    if windows_per_step > num_windows:
        raise FinetuningConfigError(
            f"{stage}.batch_size: a step takes {windows_per_step} windows (batch_size · "
            f"gradient_accumulation_steps), but there are {num_windows} to train on: lower it",
            field=f"{stage}.batch_size",
            details={"windows_per_step": windows_per_step, "num_windows": num_windows},
        )
    return max(1, min(config.windows_per_epoch or num_windows, num_windows) // windows_per_step)


@dataclass(frozen=True)
class Share:
    """One process's windows of a batch.

    Attributes:
        windows: its part, on its device; it may be empty.
        weight: size of the part over the mean size. The mean of weighted losses is that of the batch.
        drawing: a context in which the module draws, and averages, as for the whole batch.
    """

    windows: Batch
    weight: float
    drawing: AbstractContextManager[Any]


class Sharing:
    """Gives this process its share of each batch."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._device = accelerator.device
        self._index, self._num = accelerator.process_index, accelerator.num_processes
        self._generator = torch.Generator("cpu" if self._num == 1 else accelerator.device)

    def seed(self, seed: int, stage: str, step: int | str) -> None:
        """Seed the draws of a step, or of a validation."""
        seed_step(step_seed(seed, stage, step, self._index), self._device)
        self._generator.manual_seed(step_seed(seed, stage, step))

    def share(self, batch: Batch) -> Share:
        size = len(batch["x"])
        rows = slice(size * self._index // self._num, size * (self._index + 1) // self._num)
        windows = {name: values[rows].to(self._device, non_blocking=True) for name, values in batch.items()}
        weight = len(windows["x"]) * self._num / size
        is_whole = self._num == 1
        return Share(windows, weight, nullcontext() if is_whole else _WholeBatch(size, rows, self._generator))


class _WholeBatch(TorchFunctionMode):
    """Draws for all ``size`` windows of a batch and keeps those of ``rows``; averages over all processes."""

    def __init__(self, size: int, rows: slice, generator: torch.Generator) -> None:
        super().__init__()
        self._size, self._rows, self._generator = size, rows, generator

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if func is F.dropout and given["training"] and given["p"]:
            kept = 1 - given["p"]
            mask = self._like(args[0]).bernoulli_(kept, generator=self._generator)
            return args[0] * mask[self._rows].div_(kept)  # as PyTorch computes it on a CPU
        if func is Tensor.exponential_:
            return args[0].copy_(self._like(args[0]).exponential_(generator=self._generator)[self._rows])
        if func is batch_mean and torch.is_grad_enabled():  # validation does not use it
            num_own = self._rows.stop - self._rows.start
            return _Sum.apply(batch_mean(args[0]) * (num_own / self._size))  # type: ignore[no-untyped-call]
        return func(*args, **given)

    def _like(self, part: Tensor) -> Tensor:
        return part.new_empty((self._size, *part.shape[1:]))


class _Sum(torch.autograd.Function):
    """The sum over all processes; so is its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        torch.distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return _Sum.forward(ctx, gradients[0])
