"""A saved state is complete or absent."""

from pathlib import Path

import pytest
import torch
from torch import nn

from kronos_model.errors import CheckpointError, DiskFull
from kronos_model.finetuning.config import OptimiserConfig
from kronos_model.finetuning.stages.saved_state import Progress, StageState, load_progress
from kronos_model.finetuning.stages.stage import make_optimiser, make_schedule


def make(seed=0, num_features=3):
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(num_features, 4), nn.BatchNorm1d(4))  # with buffers, of integers too
    optimiser = make_optimiser(module, OptimiserConfig(learning_rate=0.1))
    return module, optimiser, make_schedule(optimiser, OptimiserConfig(learning_rate=0.1), 20)


def steps(parts, count, seed):
    module, optimiser, schedule = parts
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        module(torch.randn(8, module[0].in_features, generator=generator)).square().sum().backward()
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()


def test_training_continues_as_if_it_had_not_stopped(tmp_path):
    ours = make()
    steps(ours, 5, seed=1)
    saved = Progress(epoch=1, step=5, best_loss=0.1, best_epoch=0, trained_s=2.5)
    StageState(*ours).save(tmp_path / "state", saved)
    theirs = make(seed=9)
    assert StageState(*theirs).load(tmp_path / "state") == saved == load_progress(tmp_path / "state")
    for parts in (ours, theirs):
        steps(parts, 5, seed=2)
    assert all(
        torch.equal(one, other)
        for one, other in zip(ours[0].state_dict().values(), theirs[0].state_dict().values(), strict=True)
    )
    assert ours[1].param_groups[0]["betas"] == theirs[1].param_groups[0]["betas"]
    assert ours[2].get_last_lr() == theirs[2].get_last_lr()


@pytest.mark.parametrize(
    "step", ["kronos_model.finetuning.stages.saved_state.save_file", "pathlib.Path.replace"]
)
def test_a_save_that_fails_leaves_the_old_one(tmp_path, monkeypatch, step):
    parts = make()
    StageState(*parts).save(tmp_path / "state", Progress(step=1))

    def fail(tensors, path, metadata=None):
        Path(path).with_name("half").write_bytes(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(step, fail)
    with pytest.raises(DiskFull, match="No space left"):
        StageState(*parts).save(tmp_path / "state", Progress(step=2))
    assert load_progress(tmp_path / "state") == Progress(step=1)
    assert {path.name for path in tmp_path.iterdir()} == {"state", "half"}


def test_a_foreign_or_missing_state_is_refused(tmp_path):
    (tmp_path / "junk").write_bytes(b"junk")
    for read in (StageState(*make()).load, load_progress):
        with pytest.raises(CheckpointError, match="no saved training state"):
            read(tmp_path / "junk")
    StageState(*make()).save(tmp_path / "state", Progress())
    with pytest.raises(CheckpointError, match="does not fit"):
        StageState(*make(num_features=5)).load(tmp_path / "state")
    assert load_progress(tmp_path / "none") is None
    content = (tmp_path / "state").read_bytes()
    (tmp_path / "state").write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match="no saved training state"):
        StageState(*make()).load(tmp_path / "state")


@pytest.mark.parametrize("num_steps", [1, 2, 10, 34, 100])
@pytest.mark.parametrize("pct_start", [0.01, 0.03, 0.1, 0.5])
def test_the_schedule_lasts_for_any_number_of_steps(num_steps, pct_start):
    module = nn.Linear(1, 1)
    config = OptimiserConfig(learning_rate=1.0, pct_start=pct_start)
    optimiser = make_optimiser(module, config)
    schedule = make_schedule(optimiser, config, num_steps)
    rates = []
    for _ in range(num_steps):
        rates.append(schedule.get_last_lr()[0])
        optimiser.step()
        schedule.step()
    assert all(0 < rate <= 1 for rate in rates)
    assert num_steps < 34 or max(rates) > 0.9


def test_the_scale_of_half_precision_is_restored(tmp_path):
    module, optimiser, schedule = make()
    scaler, fresh = (torch.amp.GradScaler("cpu", init_scale=scale) for scale in (8.0, 65536.0))
    scaler.scale(torch.ones(1))  # as its first use does
    fresh.scale(torch.ones(1))
    StageState(module, optimiser, schedule, scaler).save(tmp_path / "state", Progress())
    StageState(*make(), fresh).load(tmp_path / "state")
    assert fresh.get_scale() == 8.0
    StageState(*make()).load(tmp_path / "state")  # one without asks for none
