"""The training loop: the reference's losses, and the same losses after an interruption."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from kronos_model.errors import FinetuningConfigError, TrainingDiverged, TrainingStopped
from kronos_model.finetuning.config import parse_config
from kronos_model.finetuning.group import accelerated
from kronos_model.finetuning.run_folder import RunFolder
from kronos_model.finetuning.stages.batches import window_order
from kronos_model.finetuning.stages.loop import StageLoop
from kronos_model.finetuning.stages.saved_state import load_progress
from kronos_model.finetuning.stages.stage import PredictorStage, TokenizerStage
from kronos_model.model import Kronos
from kronos_model.tokenizer import KronosTokenizer

PARITY = Path(__file__).parents[3] / "data" / "parity" / "a"


class Rows(Dataset[Any]):
    """Rows of tensors, a batch at a time."""

    def __init__(self, **columns: torch.Tensor) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("windows are fetched by the batch")

    def __getitems__(self, indices: list[int]) -> dict[str, torch.Tensor]:
        return {name: values[sorted(indices)] for name, values in self.columns.items()}


@pytest.fixture(scope="module")
def reference() -> dict[str, torch.Tensor]:
    with np.load(PARITY / "modules.npz") as stored:
        return {name: torch.from_numpy(stored[name]) for name in stored.files}


def parity_config(stage: str) -> Any:
    """The config of the reference's losses: five steps on one batch, a constant rate."""
    optimiser = {"learning_rate": 1e-3, "schedule": "constant"}
    return parse_config(
        {
            "data": {"path": "unused"},
            "stages": [stage],
            stage: {"epochs": 5, "batch_size": 2, "optimiser": optimiser},
        }
    )


def without_dropout(module: nn.Module) -> None:
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        if hasattr(part, "attn_dropout_p"):
            part.attn_dropout_p = 0.0


@pytest.mark.parametrize(
    ("name", "parts"), [("tokenizer", ("loss", "quantizer")), ("predictor", ("loss", "s1", "s2"))]
)
def test_five_steps_give_the_reference_losses(accelerator, reference, tmp_path, name, parts):
    model = Kronos.from_pretrained(PARITY / "model")
    tokenizer = KronosTokenizer.from_pretrained(PARITY / "tokenizer")
    if name == "tokenizer":
        stage, rows = TokenizerStage(tokenizer), Rows(x=reference["tok_x"])
    else:
        stage = PredictorStage(model, tokenizer, "teacher_forced")
        rows = Rows(x=reference["tok_x"], stamp=reference["stamp"])
    without_dropout(stage.trained)
    events: list[Any] = []
    folder = RunFolder(tmp_path)
    StageLoop(accelerator, stage, rows, rows, parity_config(name), folder, listener=events.append).train()
    ours = torch.tensor([[event[part] for part in parts] for event in events if event["event"] == "step"])
    torch.testing.assert_close(ours, reference[f"train_{name}_losses"], rtol=1e-5, atol=1e-6)


def small_stage(
    sibling: str = "sampled", kind: Callable[..., PredictorStage] = PredictorStage
) -> PredictorStage:
    torch.manual_seed(3)
    shape = {"ffn_dropout_p": 0.2, "attn_dropout_p": 0.2, "resid_dropout_p": 0.2}
    tokenizer = KronosTokenizer(
        6, 16, 2, 16, 2, 2, **shape, s1_bits=4, s2_bits=4, beta=0.05, gamma0=1.0, gamma=1.1, zeta=0.05,
        group_size=4,
    ).eval()  # fmt: skip
    return kind(Kronos(4, 4, 1, 16, 2, 16, **shape, token_dropout_p=0.1, learn_te=True), tokenizer, sibling)


def small_loop(accelerator: Any, folder: Path, events: list[Any], **options: Any) -> StageLoop:
    """24 random windows, batches of 2 accumulated twice: 6 steps an epoch; dropout and sampled siblings."""
    usual = small_stage()
    rows = Rows(x=torch.randn(24, 12, 6), stamp=torch.randint(1, 5, (24, 12, 5)))
    stage_config = {
        "epochs": 3, "batch_size": 2, "gradient_accumulation_steps": 2,
        "optimiser": {"learning_rate": 1e-2}, **options.pop("stage_config", {}),
    }  # fmt: skip
    config = parse_config(
        {"data": {"path": "unused"}, "predictor": stage_config, "save_interval_s": options.pop("save", 300)}
    )
    stage = options.pop("stage", usual)
    listener = options.pop("listener", events.append)

    def listen(event: Any) -> None:
        if event["event"] != "phase":
            listener(event)

    return StageLoop(accelerator, stage, rows, rows, config, RunFolder(folder), listener=listen, **options)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The result and the events of ``small_loop``."""
    events: list[Any] = []
    with accelerated(torch.device("cpu"), "no") as accelerator:
        return small_loop(accelerator, tmp_path_factory.mktemp("whole"), events).train(), events


def values_of(events: list[Any], kind: str, name: str) -> list[float]:
    return [event[name] for event in events if event["event"] == kind]


def test_a_resumed_run_has_the_losses_of_an_uninterrupted_one(accelerator, uninterrupted, tmp_path):
    result, whole = uninterrupted
    assert json.loads(json.dumps(whole)) == whole
    parts: list[Any] = []
    for last_step in (1, 6, 9, 13):  # in the middle of epochs, and on their last steps
        loop = small_loop(
            accelerator,
            tmp_path / "parts",
            parts,
            should_stop=lambda last=last_step: parts[-1]["step"] >= last,
        )
        with pytest.raises(TrainingStopped):
            loop.train()
    resumed = small_loop(accelerator, tmp_path / "parts", parts).train()

    def numbers(events):
        return [
            {
                name: value
                for name, value in event.items()
                if isinstance(value, float) and name not in ("seconds_left", "trained_s")
            }
            for event in events
        ]

    assert [event["step"] for event in parts] == [event["step"] for event in whole]
    for ours, theirs in zip(numbers(parts), numbers(whole), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-6, rel=1e-6)
    assert (resumed.best_loss, resumed.best_epoch) == pytest.approx((result.best_loss, result.best_epoch))


def test_work_since_the_last_save_is_repeated(accelerator, uninterrupted, tmp_path):
    """A kill saves nothing."""

    class Killed(Exception):
        pass

    def killing(event):
        parts.append(event)
        if event["step"] == 9:
            raise Killed

    parts: list[Any] = []
    loop = small_loop(accelerator, tmp_path / "parts", parts, listener=killing)
    with pytest.raises(Killed):
        loop.train()
    assert load_progress(tmp_path / "parts/predictor/state.safetensors").step == 6
    parts.clear()
    small_loop(accelerator, tmp_path / "parts", parts).train()
    whole = values_of(uninterrupted[1], "step", "loss")
    assert values_of(parts, "step", "loss") == pytest.approx(whole[6:], abs=1e-6)


def test_the_state_is_saved_at_the_configured_interval(accelerator, tmp_path):
    events: list[Any] = []
    seen: list[int] = []

    def listener(event):
        events.append(event)
        progress = load_progress(tmp_path / "predictor/state.safetensors")
        seen.append(progress.step if progress else 0)

    small_loop(accelerator, tmp_path, events, save=1e-9, listener=listener).train()
    assert seen[:6] == [0, 1, 2, 3, 4, 5]


def test_accumulated_batches_equal_one_larger_batch(accelerator, tmp_path):
    """Without dropout and sampling."""

    def train(folder, batch_size, accumulation):
        events: list[Any] = []
        torch.manual_seed(3)
        model = Kronos(4, 4, 1, 16, 2, 16, 0.0, 0.0, 0.0, 0.0, True)
        tokenizer = KronosTokenizer(
            6, 16, 2, 16, 2, 2, 0.0, 0.0, 0.0, 4, 4, beta=0.05, gamma0=1.0, gamma=1.1, zeta=0.05,
            group_size=4,
        ).eval()  # fmt: skip
        loop = small_loop(
            accelerator,
            folder,
            events,
            stage=PredictorStage(model, tokenizer, "teacher_forced"),
            stage_config={"batch_size": batch_size, "gradient_accumulation_steps": accumulation},
        )
        loop.train()
        return values_of(events, "step", "loss")

    assert train(tmp_path / "a", 4, 1) == pytest.approx(train(tmp_path / "b", 1, 4), abs=1e-5)


def test_a_loss_that_is_not_finite_ends_the_run_and_keeps_the_best(accelerator, tmp_path):
    events: list[Any] = []

    class Broken(PredictorStage):
        def losses(self, module, batch):
            losses = super().losses(module, batch)
            # In the second epoch.
            return (
                {name: value * float("nan") for name, value in losses.items()} if len(events) > 9 else losses
            )

    loop = small_loop(accelerator, tmp_path, events, stage=small_stage(kind=Broken))
    with pytest.raises(TrainingDiverged, match=r"predictor\.optimiser\.learning_rate") as raised:
        loop.train()
    assert raised.value.details == {"stage": "predictor", "step": 10}
    best = Kronos.from_pretrained(tmp_path / "predictor/best")
    assert all(torch.isfinite(tensor).all() for tensor in best.state_dict().values())
    assert load_progress(tmp_path / "predictor/state.safetensors").step == 6


@pytest.mark.parametrize("sibling", ["sampled", "teacher_forced"])
def test_weights_that_are_not_finite_are_named(accelerator, tmp_path, sibling):
    """Any first use of them raises the error."""
    stage = small_stage(sibling)
    loop = small_loop(accelerator, tmp_path, [], stage=stage)
    with torch.no_grad():
        stage.trained.head.proj_s1.weight.fill_(float("nan"))
    with pytest.raises(TrainingDiverged):
        loop.train()


def validating(*losses: float) -> PredictorStage:
    """A stage whose validations have these losses, in this order."""
    each_batch = (loss for loss in losses for _ in range(12))

    class Validating(PredictorStage):
        def validation_losses(self, module, batch, num_bars):
            return {"loss": torch.full((len(batch["x"]),), next(each_batch))}

    return small_stage(kind=Validating)


def test_a_validation_that_is_not_finite_is_never_the_best(accelerator, tmp_path):
    loop = small_loop(accelerator, tmp_path, [], stage=validating(float("nan")))
    with pytest.raises(TrainingDiverged):
        loop.train()
    assert not (tmp_path / "predictor/best").exists()
    assert not (tmp_path / "predictor/state.safetensors").exists()


def test_a_stop_during_validation_takes_effect(accelerator, uninterrupted, tmp_path):
    parts: list[Any] = []
    asked = 0

    def should_stop():
        nonlocal asked
        asked += 1
        return asked == 8  # six steps, then the second batch of validation

    with pytest.raises(TrainingStopped):
        small_loop(accelerator, tmp_path / "parts", parts, should_stop=should_stop).train()
    assert [event["event"] for event in parts] == ["step"] * 6
    small_loop(accelerator, tmp_path / "parts", parts).train()
    ours, theirs = (values_of(events, "epoch", "validation_loss") for events in (parts, uninterrupted[1]))
    assert ours == pytest.approx(theirs, abs=1e-6)


class OneOfTwo:
    """An accelerator that reports two processes; ``asked`` are the answers of the other one, else no."""

    num_processes = 2

    def __init__(self, accelerator: Any, asked: tuple[bool, ...] = ()) -> None:
        self._accelerator = accelerator
        self._asked = iter(asked)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._accelerator, name)

    def reduce(self, value: Any, reduction: str) -> Any:
        return value

    def check_trigger(self) -> bool:
        return bool(self._accelerator.check_trigger()) or next(self._asked, False)


def test_all_processes_save_at_the_step_at_which_one_does(accelerator, tmp_path):
    saved: list[int] = []

    def listener(event):
        progress = load_progress(tmp_path / "predictor/state.safetensors")
        saved.append(progress.step if progress else 0)

    # At each step whether to stop and whether to save: the other one saves after 2 steps, and stops after 3.
    other = OneOfTwo(accelerator, asked=(False, False, False, True, True))
    with pytest.raises(TrainingStopped):
        small_loop(other, tmp_path, [], listener=listener).train()
    assert saved == [0, 0, 2]


@pytest.mark.parametrize(
    ("num_processes", "batch_size", "message"),
    [(2, 1, "2 processes cannot share 1 windows"), (1, 25, "takes 50 windows")],
)
def test_a_batch_too_small_or_too_large_is_refused(accelerator, tmp_path, num_processes, batch_size, message):
    of_it = OneOfTwo(accelerator) if num_processes == 2 else accelerator
    with pytest.raises(FinetuningConfigError, match=message) as raised:
        small_loop(of_it, tmp_path, [], stage_config={"batch_size": batch_size})
    assert raised.value.field == "predictor.batch_size"


def test_training_stops_early_if_validation_does_not_improve(accelerator, tmp_path):
    events: list[Any] = []
    stage = validating(3.0, 2.0, 2.5, 1.875, 2.0, 1.9375, 0.125)
    loop = small_loop(accelerator, tmp_path, events, stage=stage, stage_config={"epochs": 20, "patience": 2})
    result = loop.train()
    assert (result.best_loss, result.best_epoch, result.epochs) == (1.875, 4, 6)
    assert values_of(events, "epoch", "is_best") == [True, True, False, True, False, False]


def test_the_stage_ends_with_its_best_weights(accelerator, tmp_path):
    stage = validating(1.0, 2.0, 3.0)
    small_loop(accelerator, tmp_path, [], stage=stage).train()
    best = Kronos.from_pretrained(tmp_path / "predictor/best").state_dict()
    now = stage.trained.state_dict()
    assert all(torch.equal(now[name], tensor) for name, tensor in best.items())
    assert not stage.trained.training


def test_validation_sees_no_future():
    """The loss at a bar does not depend on later bars, in eval mode too."""
    stage = small_stage("teacher_forced")  # else the draws of all positions depend on each other
    stage.trained.eval()
    batch = {"x": torch.randn(2, 12, 6), "stamp": torch.randint(1, 5, (2, 12, 5))}
    changed = {name: tensor.clone() for name, tensor in batch.items()}
    changed["x"][:, 8:] += 1
    changed["stamp"][:, 8:] = 1
    with torch.no_grad():
        (s1, s2), _ = stage.predict(stage.trained, batch)
        (other_s1, other_s2), _ = stage.predict(stage.trained, changed)
    torch.testing.assert_close(s1[:, :8], other_s1[:, :8])
    # The fine token of a bar is predicted from its coarse one, so the target at 8 counts for position 7.
    torch.testing.assert_close(s2[:, :7], other_s2[:, :7])
    assert not torch.allclose(s1[:, 8:], other_s1[:, 8:])


def test_an_epoch_has_each_window_once_in_its_own_order():
    first, second = (window_order(1, "predictor", epoch, 12, 12) for epoch in (0, 1))
    assert sorted(first) == sorted(second) == list(range(12))
    assert first.tolist() != second.tolist()
    assert first.tolist() == window_order(1, "predictor", 0, 12, 12).tolist()
    assert len(window_order(1, "predictor", 0, 3, 8)) == 8  # a step takes more windows than there are
