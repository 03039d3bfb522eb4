"""Fixtures for tests of finetuning."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator

from kronos_model.finetuning.group import accelerated

from .tiny_runs import write_candles


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the candles of two instruments."""
    return write_candles(tmp_path_factory.mktemp("candles"))


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    with accelerated(torch.device("cpu"), "no") as accelerator:
        yield accelerator
