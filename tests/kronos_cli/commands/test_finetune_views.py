"""The views of a finetuning job."""

from io import StringIO
from typing import Any

import pytest
from rich.console import Console, RenderableType

from kronos_cli.commands.finetune_views import WAITING, result_view, state_line, state_view
from kronos_client.contract.finetune import FinetuneProgress, FinetuneResult
from kronos_client.contract.schemas import example
from kronos_client.core.kinds import FinetuneState

TRAINING = FinetuneProgress(
    stage="predictor", stage_index=1, num_stages=2, epoch=2, num_epochs=10, step=1200, num_steps=10000,
    loss=5.1, learning_rate=1e-4, validation_loss=5.0, best_validation_loss=4.9, seconds_left=93.0,
    device="cuda:0",
)  # fmt: skip


def shown(view: RenderableType, width: int = 100) -> str:
    console = Console(file=StringIO(), width=width)
    console.print(view)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def rows_of(result: FinetuneResult, width: int = 100) -> list[list[str]]:
    return [line.split(maxsplit=1) for line in shown(result_view(result), width).splitlines() if line.strip()]


def test_training_shows_stage_epoch_step_losses_and_the_time_left() -> None:
    lines = shown(state_view(FinetuneState("PROGRESS", TRAINING))).splitlines()

    assert lines[0] == "predictor (stage 2 of 2), epoch 2 of 10, step 1,200 of 10,000, on cuda:0"
    assert lines[1].rstrip().endswith("12% 1 min left")
    assert lines[2] == "loss 5.1000   validation 5.0000   best 4.9000   learning rate 1.0e-04"


def test_the_bar_is_as_long_as_the_share_of_steps() -> None:
    def chars(step: int) -> int:
        progress = TRAINING.model_copy(update={"step": step})
        return shown(state_view(FinetuneState("PROGRESS", progress))).splitlines()[1].count("━")

    assert chars(0) < chars(5000) < chars(10000) == 40


@pytest.mark.parametrize("name", ["PENDING", "STARTED", "PROGRESS"])
def test_before_training_the_view_names_the_reason_of_the_wait(name: str) -> None:
    state = FinetuneState(name)

    assert shown(state_view(state)).strip() == state_line(state) == WAITING[name]


def test_unknown_values_are_left_out() -> None:
    early = FinetuneProgress(stage="tokenizer", step=0, num_steps=None)

    assert shown(state_view(FinetuneState("PROGRESS", early))).strip() == "tokenizer, step 0"


def test_the_evaluation_counts_bars() -> None:
    progress = FinetuneProgress(stage="evaluation", step=500, num_steps=2000)
    text = shown(state_view(FinetuneState("PROGRESS", progress)))

    assert text.startswith("evaluation on the held-out end, bar 500 of 2,000")
    assert "25%" in text
    assert shown(state_view(FinetuneState("PROGRESS", FinetuneProgress(stage="evaluation")))).strip()


def test_lines_are_new_for_a_new_epoch_only() -> None:
    def line(**changes: Any) -> str:
        return state_line(FinetuneState("PROGRESS", TRAINING.model_copy(update=changes)))

    assert line() == "predictor (stage 2 of 2), epoch 2 of 10, on cuda:0: validation 5.0000   best 4.9000"
    assert line(step=1300, loss=5.05, learning_rate=2e-4, seconds_left=80.0) == line()
    assert line(epoch=3) != line()


def test_evaluation_lines_are_one() -> None:
    lines = {
        state_line(FinetuneState("PROGRESS", FinetuneProgress(stage="evaluation", step=step, num_steps=9)))
        for step in range(9)
    }

    assert len(lines) == 1


def test_the_result_shows_model_verdict_and_each_warning_once() -> None:
    warning = "CUDA device 'cuda:0' requested but CUDA not available. Falling back to CPU."
    content = example("finetune-result") | {
        "device_warning": warning,
        "warnings": [warning, "few [bold]bars"],
    }
    rows = rows_of(FinetuneResult.model_validate(content), width=160)

    assert ["Model", "crypto-hourly@3"] in [[name, rest.strip()] for name, rest in rows]
    first = next(index for index, (name, _) in enumerate(rows) if name == "Verdict")
    assert rows[first][1].strip() == content["verdict"][0]
    assert " ".join(rows[first + 1]).strip() == content["verdict"][1]
    assert [rest.strip() for name, rest in rows if name == "Warning"] == [warning, "few [bold]bars"]
    assert ["Trained", "1 h, 2 starts"] in [[name, rest.strip()] for name, rest in rows]
