"""Each step's seed goes to the device that trains, and to no other."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from kronos_model.finetuning.stages.batches import seed_step


def test_the_seed_goes_to_the_gpu_that_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in PyTorch, ``manual_seed`` seeds the current device, which is the first one."""
    current, seeds = [0], {}

    @contextmanager
    def device(chosen: torch.device) -> Iterator[None]:
        current.append(chosen.index)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "manual_seed", lambda seed: seeds.update({current[-1]: seed}))
    with torch.random.fork_rng(devices=[]):
        seed_step(5, torch.device("cuda", 1))
        assert seeds == {1: 5}
        assert torch.initial_seed() == 5
