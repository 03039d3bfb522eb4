"""Training on a real GPU."""

import itertools
from pathlib import Path

import pytest

from kronos_model.errors import TrainingStopped
from kronos_model.finetuning import finetune
from kronos_model.finetuning.run_folder import RunFolder
from kronos_model.finetuning.stages.saved_state import load_progress

from .tiny_runs import tiny_config

pytestmark = pytest.mark.gpu

TOLERANCES = {"no": 1e-4, "bf16": 1e-2, "fp16": 1e-2}
"""Of losses. Some of a GPU's sums have another order in each run."""


def assert_resumes(data: Path, folder: Path, device: str, mixed_precision: str) -> None:
    """Stop a run inside its first epoch. Resumed, it ends as one that was not stopped."""
    config = tiny_config(
        data,
        training_device=device,
        mixed_precision=mixed_precision,
        evaluation={"windows": 2, "sample_count": 2},
    )
    whole = finetune(config, folder / "whole")
    assert (whole.device, whole.device_warning) == (device, None)
    calls = itertools.count()
    with pytest.raises(TrainingStopped):
        # Asked before the first step, and after each.
        finetune(config, folder / "parts", should_stop=lambda: next(calls) >= 3)
    progress = load_progress(RunFolder(folder / "parts").state("tokenizer"))
    assert progress is not None
    assert (progress.step, progress.epoch) == (3, 0)
    parts = finetune(config, folder / "parts")
    for stage, result in whole.metadata["metrics"].items():
        ours = parts.metadata["metrics"][stage]["best_loss"]
        assert ours == pytest.approx(result["best_loss"], rel=TOLERANCES[mixed_precision])


@pytest.mark.parametrize("mixed_precision", TOLERANCES)
def test_a_resumed_run_ends_like_an_uninterrupted_one(first_gpu, data, tmp_path, mixed_precision):
    assert_resumes(data, tmp_path, first_gpu, mixed_precision)


def test_a_run_on_the_second_gpu_seeds_that_one(second_gpu, data, tmp_path):
    assert_resumes(data, tmp_path, second_gpu, "no")
