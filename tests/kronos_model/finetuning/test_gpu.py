"""Training on a real GPU."""

import pytest

from kronos_model.errors import TrainingStopped
from kronos_model.finetuning import finetune

from .tiny_runs import tiny_config

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("mixed_precision", ["no", "bf16", "fp16"])
def test_a_resumed_run_ends_like_an_uninterrupted_one(data, tmp_path, mixed_precision):
    config = tiny_config(
        data,
        training_device="cuda",
        mixed_precision=mixed_precision,
        evaluation={"windows": 2, "sample_count": 2},
    )
    whole = finetune(config, tmp_path / "whole")
    assert whole.device.startswith("cuda")
    steps = 0

    def count(event):
        nonlocal steps
        steps += event["event"] == "step"

    with pytest.raises(TrainingStopped):
        finetune(config, tmp_path / "parts", listeners=[count], should_stop=lambda: steps >= 1)
    parts = finetune(config, tmp_path / "parts")
    for stage, result in whole.metadata["metrics"].items():
        ours = parts.metadata["metrics"][stage]["best_loss"]
        assert ours == pytest.approx(result["best_loss"], rel=1e-2)
