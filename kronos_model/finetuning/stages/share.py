"""The share of each batch that one of several processes computes.

All of them draw the same batches and give the same losses as one process that computes them whole, except for
dropout inside attention, which each process draws for its own share. On a GPU several processes draw other
numbers than one does.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from kronos_model.finetuning.stages.batches import seed_step, step_seed
from kronos_model.finetuning.stages.stage import Batch
from kronos_model.quantizer import batch_mean


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

    def of(self, batch: Batch) -> Share:
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
