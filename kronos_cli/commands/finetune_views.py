"""Views of a finetuning job: its progress and its result."""

from dataclasses import replace

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kronos_cli.terminal import duration, simple_table
from kronos_client.contract.finetune import FinetuneProgress, FinetuneResult
from kronos_client.core.kinds import FinetuneState

BAR_CHARS = 40

WAITING = {
    "PENDING": "Queued until a finetuning worker is free.",
    "STARTED": "Taken by a worker. Training begins.",
    "PROGRESS": "Reading the candles.",
}


def state_view(state: FinetuneState) -> RenderableType:
    """The job's stage, a bar of the stage's steps, and its losses."""
    progress = state.progress
    parts: list[RenderableType] = [Text(place(state))]
    if progress.step is not None and progress.num_steps:
        bar = ProgressBar(total=progress.num_steps, completed=progress.step, width=BAR_CHARS)
        left = "" if progress.seconds_left is None else f"{duration(progress.seconds_left)} left"
        row = Table.grid(padding=(0, 1))
        row.add_row(bar, Text(f"{progress.step / progress.num_steps:.0%}"), Text(left))
        parts.append(row)
    if text := losses(progress):
        parts.append(Text(text))
    return Group(*parts)


def state_line(state: FinetuneState) -> str:
    """The job in one line that changes only with the stage and the epoch, for output that is not redrawn."""
    changing = dict.fromkeys(("step", "num_steps", "loss", "learning_rate"))
    state = replace(state, progress=state.progress.model_copy(update=changing))
    return ": ".join(filter(None, [place(state), losses(state.progress)]))


def place(state: FinetuneState) -> str:
    """Text such as "predictor (stage 2 of 2), epoch 2 of 10, step 120 of 1,000, on cuda:0"."""
    progress = state.progress
    if progress.stage is None:
        return WAITING.get(state.name, f"{state.name}.")
    is_evaluation = progress.stage == "evaluation"
    parts = ["evaluation on the held-out end" if is_evaluation else progress.stage]
    if progress.stage_index is not None and progress.num_stages is not None:
        parts[0] += f" (stage {progress.stage_index + 1} of {progress.num_stages})"
    if progress.epoch is not None:
        parts.append(f"epoch {progress.epoch}" + _of(progress.num_epochs))
    if progress.step is not None:
        unit = "bar" if is_evaluation else "step"
        parts.append(f"{unit} {progress.step:,}" + _of(progress.num_steps))
    if progress.device is not None:
        parts.append(f"on {progress.device}")
    return ", ".join(parts)


def _of(total: int | None) -> str:
    return "" if total is None else f" of {total:,}"


def losses(progress: FinetuneProgress) -> str:
    """The known losses, with the learning rate."""
    fields = {"loss": "loss", "validation": "validation_loss", "best": "best_validation_loss"}
    values = {name: getattr(progress, field) for name, field in fields.items()}
    texts = [f"{name} {value:.4f}" for name, value in values.items() if value is not None]
    if progress.learning_rate is not None:
        texts.append(f"learning rate {progress.learning_rate:.1e}")
    return "   ".join(texts)


def result_view(result: FinetuneResult) -> RenderableType:
    """The registered model, its verdict and its warnings. The job's text is never markup."""
    table = simple_table("what", "value", texts=["what"], names=["value"], show_header=False)
    trained = duration(result.timings_ms.training / 1000)
    trained += f", {result.num_attempts} starts" if result.num_attempts > 1 else ""
    verdict = [("" if index else "Verdict", line) for index, line in enumerate(result.verdict)]
    rows = [("Model", result.model.id), ("Device", result.device), *verdict, ("Trained", trained)]
    for name, text in rows:
        table.add_row(name, Text(text))
    for text in dict.fromkeys(filter(None, [result.device_warning, *result.warnings])):
        table.add_row("Warning", Text(text), style="yellow")
    table.add_row("Use", Text(f'a forecast job with "model": "{result.model.id}"'))
    return table
