"""Events of a training run, for a file, a progress bar, TensorBoard or a parent process."""

import json
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Final

from tqdm import tqdm

from kronos_model.atomic_write import atomic_write, disk_errors

log = logging.getLogger(__name__)

Event = Mapping[str, Any]
"""JSON-compatible; ``event`` is the kind: phase, started, data, step, epoch, evaluating, evaluation, done,
error or stopped."""

Listener = Callable[[Event], None]

PROGRESS_INTERVAL_S: Final = 1.0
PROGRESS_FIELDS: Final = (
    "stage", "stage_index", "num_stages", "epoch", "num_epochs", "step", "num_steps", "loss", "learning_rate",
    "validation_loss", "best_validation_loss", "seconds_left",
)  # fmt: skip
"""Fields of a progress event; None if not known yet."""


class MetricsFile:
    """Appends logged steps, epochs and the evaluation to ``metrics.jsonl``.

    A resumed run repeats the steps after its last save, so their lines are removed first.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def remove_after(self, stage: str, step: int) -> None:
        """Remove this stage's lines after this step, and an incomplete line from a crash."""
        if not self._path.exists():
            return
        kept = []
        for line in self._path.read_text(encoding="utf-8").splitlines():  # a few thousand a run
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if entry.get("stage") != stage or entry.get("step", 0) <= step:
                kept.append(line + "\n")
        with disk_errors(self._path), atomic_write(self._path) as staging:
            staging.write_text("".join(kept), encoding="utf-8")

    def validation_losses(self, stage: str) -> list[float]:
        """The losses after each epoch of a stage."""
        lines = self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []
        entries = map(json.loads, lines)  # without an incomplete line: ``remove_after`` came first
        epochs = (entry for entry in entries if (entry["event"], entry.get("stage")) == ("epoch", stage))
        return [epoch["validation_loss"] for epoch in epochs]

    def __call__(self, event: Event) -> None:
        if event.get("evaluation") or event.get("is_logged"):
            entry = {name: value for name, value in event.items() if name != "is_logged"}
            with disk_errors(self._path), self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")


class JsonProgress:
    """JSON lines for a parent process: ``progress`` events, and all other events but phases unchanged.

    Training sends about one ``progress`` event a second, with the latest values of ``PROGRESS_FIELDS``.
    """

    def __init__(self, file: IO[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._clock = clock
        self._sent_at_s = float("-inf")
        self._latest: dict[str, Any] = {}

    def __call__(self, event: Event) -> None:
        kind = event["event"]
        if kind not in ("step", "epoch", "evaluating"):
            if kind != "phase":
                self._write(event)
            return
        if kind == "evaluating":
            event = {"stage": "evaluation", "step": event["bars_done"], "num_steps": event["bars_total"]}
        if event["stage"] != self._latest.get("stage"):
            self._latest = dict.fromkeys(PROGRESS_FIELDS)
        self._latest |= {name: event[name] for name in PROGRESS_FIELDS if name in event}
        now = self._clock()
        if kind == "epoch" or now - self._sent_at_s >= PROGRESS_INTERVAL_S:
            self._sent_at_s = now
            self._write({"event": "progress", **self._latest})

    def _write(self, event: Event) -> None:
        print(json.dumps(event), file=self._file, flush=True)


class ProgressBar:
    """One line for each epoch, and on a terminal what is done now, by a bar with loss, rate and time left."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._bar: Any = None
        self._stage: str | None = None

    def __call__(self, event: Event) -> None:
        match event["event"]:
            case "phase":
                self._show_phase(event["phase"], event.get("stage"))
            case "evaluating":
                self._advance("evaluation", event["bars_done"], event["bars_total"])
            case "step":
                self._advance(event["stage"], event["step"], event["num_steps"])
                losses = {"loss": f"{event['loss']:.4f}", "lr": f"{event['learning_rate']:.2g}"}
                self._bar.set_postfix(losses, refresh=False)
            case "epoch":
                best = " (best)" if event["is_best"] else ""
                self._write(
                    f"{event['stage']}, epoch {event['epoch']} of {event['num_epochs']}: "
                    f"loss {event['train_loss']:.4f}, validation {event['validation_loss']:.4f}{best}"
                )
            case "started":
                warning = f"; {event['device_warning']}" if event["device_warning"] else ""
                start = "resumed" if event["resumed"] else "started"
                self._write(f"{start} on {event['device']}{warning}")
            case "data" | "evaluation":
                self._close()
                self._write(event["summary"])
            case "done" | "error" | "stopped":
                self._close()

    def _show_phase(self, phase: str, stage: str | None) -> None:
        if stage is not None and stage == self._stage:
            self._bar.set_postfix_str(phase)
            return
        self._close()
        text = f"{phase} …" if stage is None else f"{stage}, {phase} …"
        self._bar = tqdm(desc=text, bar_format="{desc}", leave=False, file=self._file, disable=None)

    def _advance(self, stage: str, step: int, num_steps: int) -> None:
        if self._stage != stage:
            self._close()
            self._stage = stage
            begun = {"total": num_steps, "initial": max(0, step - 1)}
            self._bar = tqdm(desc=stage, **begun, file=self._file, disable=None)
        self._bar.update(step - self._bar.n)

    def _write(self, text: str) -> None:
        tqdm.write(text, file=self._file)

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = self._stage = None


def tensorboard(folder: Path) -> Listener | None:
    """A listener that writes scalars for TensorBoard; None if that is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    writer: Any = None
    is_given_up = False

    def write(event: Event) -> None:
        nonlocal writer, is_given_up
        if is_given_up or not event.get("is_logged"):
            return
        try:
            writer = writer or SummaryWriter(str(folder))
            for name, value in event.items():
                if isinstance(value, float) and name != "seconds_left":
                    writer.add_scalar(f"{event['stage']}/{name}", value, event["step"])
            if event["event"] == "epoch":
                writer.flush()
        except OSError as error:  # the metrics file has the same numbers
            is_given_up = True
            log.warning("TensorBoard's files cannot be written, training continues without them: %s", error)

    return write
