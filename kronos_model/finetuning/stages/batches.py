"""The order of a stage's windows and the seeds of its steps, both derived from the run's seed.

So a resumed run draws as an uninterrupted one does, without a saved generator state, and several processes
draw as one does.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Sampler

from kronos_model.errors import FinetuningConfigError
from kronos_model.finetuning.config import StageConfig
from kronos_model.seeds import seed_from_text

VALIDATION: Final = "validation"


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
