"""A run's events: in a file, for a parent process, for people."""

import io
import json

from kronos_model.finetuning.reporting import JsonProgress, MetricsFile, ProgressBar


def step(number, stage="predictor", **fields):
    return {
        "event": "step", "stage": stage, "stage_index": 1, "num_stages": 2, "epoch": 1, "num_epochs": 2,
        "step": number, "num_steps": 20, "loss": 5.0 - number, "s1": 1.0, "learning_rate": 0.1,
        "best_validation_loss": None, "seconds_left": 3.0, "is_logged": True, **fields,
    }  # fmt: skip


def epoch(number, **fields):
    return step(number) | {
        "event": "epoch", "train_loss": 4.0, "validation_loss": 3.5, "is_best": True,
        "best_validation_loss": 3.5, **fields,
    }  # fmt: skip


def test_the_file_has_logged_events_without_repeated_steps(tmp_path):
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    metrics.remove_after("predictor", 0)  # nothing there yet
    for event in (
        {"event": "started", "device": "cpu"},
        step(8, "tokenizer"),
        step(9, is_logged=False),
        step(10),
        epoch(10),
        step(20),
        {"event": "evaluation", "evaluation": {"judged": "finetuned"}},
    ):
        metrics(event)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"event": "st')  # a crash in the middle of a line
    metrics.remove_after("predictor", 10)

    def kept():
        lines = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
        return [(line["event"], line.get("stage"), line.get("step")) for line in lines]

    assert kept()[:3] == [("step", "tokenizer", 8), ("step", "predictor", 10), ("epoch", "predictor", 10)]
    assert ("step", "predictor", 20) not in kept()


def test_a_parent_receives_progress_each_second_and_each_epoch():
    now = [0.0]
    out = io.StringIO()
    progress = JsonProgress(out, clock=lambda: now[0])
    for number in range(1, 31):
        now[0] = number / 8
        progress(step(number))
    progress(epoch(30))
    progress({"event": "evaluating", "bars_done": 5, "bars_total": 10})
    progress({"event": "phase", "phase": "Loading the model"})
    progress({"event": "done", "checkpoint": "x"})
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line.get("step") for line in lines] == [1, 9, 17, 25, 30, None]
    assert (lines[4]["loss"], lines[4]["learning_rate"], lines[4]["validation_loss"]) == (-25.0, 0.1, 3.5)
    assert lines[4]["best_validation_loss"] == 3.5
    assert lines[5] == {"event": "done", "checkpoint": "x"}
    now[0] += 1
    progress({"event": "evaluating", "bars_done": 7, "bars_total": 10})
    line = json.loads(out.getvalue().splitlines()[-1])
    assert (line["stage"], line["step"], line["num_steps"], line["loss"]) == ("evaluation", 7, 10, None)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_bar_shows_loss_rate_and_time_left():
    out = Terminal()
    bar = ProgressBar(out)
    bar({"event": "started", "device": "cpu", "device_warning": "no GPU", "resumed": False})
    for number in range(1, 21):
        bar(step(number))
    bar(epoch(20))
    bar({"event": "evaluation", "evaluation": None, "summary": "Not compared."})
    bar({"event": "done"})
    text = out.getvalue()
    assert "started on cpu; no GPU" in text
    assert "predictor" in text
    assert "loss=" in text
    assert "lr=0.1" in text
    assert "epoch 1 of 2: loss 4.0000, validation 3.5000 (best)" in text
    assert text.rstrip().endswith("Not compared.")


def test_a_bar_is_shown_on_a_terminal_and_nowhere_else():
    for out in (Terminal(), io.StringIO()):
        bar = ProgressBar(out)
        bar({"event": "phase", "phase": "Loading the model"})
        bar({"event": "phase", "phase": "first step", "stage": "predictor"})
        for number in range(1, 21):
            bar(step(number))
        bar({"event": "phase", "phase": "validating", "stage": "predictor"})
        bar(epoch(20))
        bar({"event": "evaluating", "bars_done": 5, "bars_total": 10})
        bar({"event": "done"})
        shown = "Loading the model …", "predictor, first step …", "validating", "evaluation:  50%"
        found = [text in out.getvalue() for text in (*shown, "predictor: 100%")]
        assert found == [out.isatty()] * 5
