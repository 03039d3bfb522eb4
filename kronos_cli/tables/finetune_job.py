"""Views of a finetuning job: its progress and its result."""

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kronos_cli.tables.parts import duration, simple_table
from kronos_client.contract.finetune_results import FinetuneProgress, FinetuneResult
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
    if progress.stage is None:
        return Text(WAITING.get(state.name, f"{state.name}."))
    parts: list[RenderableType] = [Text(place(progress))]
    if progress.step is not None and progress.num_steps:
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            ProgressBar(total=progress.num_steps, completed=progress.step, width=BAR_CHARS),
            Text(f"{progress.step / progress.num_steps:.0%}"),
            Text("" if progress.seconds_left is None else f"{duration(progress.seconds_left)} left"),
        )
        parts.append(bar)
    if text := losses(progress):
        parts.append(Text(text))
    return Group(*parts)


def place(progress: FinetuneProgress) -> str:
    """Text such as "predictor (stage 2 of 2), epoch 2 of 10, step 120 of 1,000, on cuda:0"."""
    parts = [str(progress.stage)]
    if progress.stage == "evaluation":
        parts = ["evaluation on the held-out end"]
    if progress.stage_index is not None and progress.num_stages is not None:
        parts[0] += f" (stage {progress.stage_index + 1} of {progress.num_stages})"
    if progress.epoch is not None:
        parts.append(f"epoch {progress.epoch}" + _of(progress.num_epochs))
    if progress.step is not None:
        unit = "bar" if progress.stage == "evaluation" else "step"
        parts.append(f"{unit} {progress.step:,}" + _of(progress.num_steps))
    if progress.device is not None:
        parts.append(f"on {progress.device}")
    return ", ".join(parts)


def losses(progress: FinetuneProgress) -> str:
    """The known losses, with the learning rate."""
    values = {
        "loss": progress.loss,
        "validation": progress.validation_loss,
        "best": progress.best_validation_loss,
    }
    texts = [f"{name} {value:.4f}" for name, value in values.items() if value is not None]
    if progress.learning_rate is not None:
        texts.append(f"learning rate {progress.learning_rate:.1e}")
    return "   ".join(texts)


def state_line(state: FinetuneState) -> str:
    """The job in one line that changes only with the stage and the epoch, for output that is not redrawn."""
    progress = state.progress
    if progress.stage is None:
        return WAITING.get(state.name, f"{state.name}.")
    fields = {"step": None, "num_steps": None, "loss": None, "learning_rate": None}
    shown = progress.model_copy(update=fields)
    return ": ".join(filter(None, [place(shown), losses(shown)]))


def result_view(result: FinetuneResult) -> RenderableType:
    """The registered model, its verdict and its warnings. The job's text is never markup."""
    table = simple_table("what", "value", texts=("what",), names=("value",), show_header=False)
    rows = [("Model", result.model.id), ("Device", result.device)]
    rows += [("" if index else "Verdict", line) for index, line in enumerate(result.verdict)]
    trained_s = result.timings_ms.training / 1000
    again = f", {result.num_attempts} starts" if result.num_attempts > 1 else ""
    rows.append(("Trained", f"{duration(trained_s)}{again}"))
    for name, text in rows:
        table.add_row(name, Text(text))
    for text in dict.fromkeys(filter(None, [result.device_warning, *result.warnings])):
        table.add_row(Text("Warning", style="yellow"), Text(text, style="yellow"))
    table.add_row("Use", Text(f'a forecast job with "model": "{result.model.id}", or "{result.model.name}"'))
    return table


def _of(total: int | None) -> str:
    return "" if total is None else f" of {total:,}"
