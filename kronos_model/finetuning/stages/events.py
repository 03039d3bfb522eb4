"""Events of a stage's training: steps, epochs, and losses that are not finite."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kronos_model.errors import TrainingDiverged
from kronos_model.finetuning.config import StageName
from kronos_model.finetuning.reporting import Listener
from kronos_model.finetuning.stages.state import Progress


@dataclass(frozen=True)
class StageEvents:
    """Sends the events of one stage to a listener, each with the position that ``progress`` holds."""

    stage: StageName
    num_epochs: int
    steps_per_epoch: int
    progress: Progress
    listener: Listener

    @property
    def num_steps(self) -> int:
        return self.steps_per_epoch * self.num_epochs

    def report_step(
        self, losses: Mapping[str, float], learning_rate: float, seconds_per_step: float, *, is_logged: bool
    ) -> None:
        seconds_left = round((self.num_steps - self.progress.step) * seconds_per_step, 1)
        rest = {"learning_rate": learning_rate, "seconds_left": seconds_left}
        self._send("step", is_logged=is_logged, **losses, **rest)

    def report_phase(self, phase: str) -> None:
        self.listener({"event": "phase", "phase": phase, "stage": self.stage})

    def report_epoch(self, train_loss: float, validation: Mapping[str, float], *, is_best: bool) -> None:
        """Report a saved epoch; ``validation`` has ``loss`` and its parts."""
        parts = {f"validation_{name}": value for name, value in validation.items()}
        rest = {"is_best": is_best, "trained_s": self.progress.trained_s}
        self._send("epoch", is_logged=True, train_loss=train_loss, **parts, **rest)

    def check_finite(self, loss: float) -> None:
        if math.isfinite(loss):
            return
        field = f"{self.stage}.optimiser.learning_rate"
        raise TrainingDiverged(
            f"the {self.stage}'s loss is {loss} after {self.progress.step} steps: lower {field}, or "
            "use mixed_precision no or bf16; the best checkpoint so far is kept",
            field=field,
            details={"stage": self.stage, "step": self.progress.step},
        )

    def _send(self, kind: str, **content: Any) -> None:
        progress = self.progress
        position = {
            "stage": self.stage,
            "epoch": min(-(-progress.step // self.steps_per_epoch), self.num_epochs),
            "num_epochs": self.num_epochs,
            "step": progress.step,
            "num_steps": self.num_steps,
            "best_validation_loss": progress.best_loss,
        }
        self.listener({**position, "event": kind, **content})
