"""Batches of windows: their order in each epoch, and their loaders."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from kronos_model.errors import FinetuningConfigError
from kronos_model.finetuning.config import StageConfig
from kronos_model.finetuning.seeding import window_order


class EpochOrder(Sampler[int]):
    """The order of an epoch's windows. It differs between epochs, and a resumed run has the same one."""

    def __init__(self, seed: int, stage: str, num_windows: int, num_drawn: int) -> None:
        self._seed, self._stage = seed, stage
        self._num_windows, self._num_drawn = num_windows, num_drawn
        self.epoch = 0

    def __len__(self) -> int:
        return self._num_drawn

    def __iter__(self) -> Iterator[int]:
        return map(int, window_order(self._seed, self._stage, self.epoch, self._num_windows, self._num_drawn))


def steps_per_epoch(config: StageConfig, stage: str, num_windows: int, num_processes: int) -> int:
    """Whole optimiser steps in an epoch. Windows left over may be drawn in another epoch.

    Raises FinetuningConfigError if a step takes more windows than there are.
    """
    windows_per_step = config.batch_size * config.gradient_accumulation_steps * num_processes
    if windows_per_step > num_windows:
        raise FinetuningConfigError(
            f"{stage}.batch_size: a step takes {windows_per_step} windows (batch_size · "
            f"gradient_accumulation_steps · processes), but there are {num_windows} to train on: lower it",
            field=f"{stage}.batch_size",
            details={"windows_per_step": windows_per_step, "num_windows": num_windows},
        )
    return max(1, min(config.windows_per_epoch or num_windows, num_windows) // windows_per_step)


def make_loader(
    dataset: Dataset[Any],
    batch_size: int,
    num_workers: int,
    device: torch.device,
    order: EpochOrder | None = None,
) -> DataLoader[Any]:
    """A loader of batches in this order, by default the dataset's; ``num_workers`` processes make them."""
    return DataLoader(
        dataset,
        batch_size=batch_size,
        sampler=order,
        collate_fn=_as_it_is,  # the dataset makes whole batches
        num_workers=num_workers,
        pin_memory=device.type == "cuda",
    )


def _as_it_is(batch: Any) -> Any:
    return batch
