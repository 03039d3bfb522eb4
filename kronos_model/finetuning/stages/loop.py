"""The training loop of one stage; HuggingFace Accelerate runs it on any device."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from kronos_model.atomic_write import disk_errors
from kronos_model.errors import (
    FinetuningConfigError,
    OutOfMemory,
    TrainingDiverged,
    TrainingStopped,
    is_out_of_memory,
)
from kronos_model.finetuning.config import FinetuneConfig, StageConfig
from kronos_model.finetuning.reporting import Listener
from kronos_model.finetuning.run_folder import RunFolder
from kronos_model.finetuning.stages.batches import VALIDATION, EpochOrder, Sharing, steps_per_epoch
from kronos_model.finetuning.stages.cpu_products import fast_products
from kronos_model.finetuning.stages.saved_state import Progress, StageState
from kronos_model.finetuning.stages.stage import Stage, make_optimiser, make_schedule

LOG_INTERVAL_STEPS: Final = 10
"""Steps between two losses in the metrics; on a GPU also between two reads of the loss, which wait for it."""


@dataclass(frozen=True)
class StageResult:
    """The result of a stage. The loss is of validation."""

    best_loss: float
    best_epoch: int
    epochs: int
    steps: int
    trained_s: float


class StageLoop:
    """Trains one stage to its end, from its saved state if there is one.

    In the main process, ``listener`` receives steps and epochs. ``should_stop`` is called after each step.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        stage: Stage,
        training: Dataset[Any],
        validation: Dataset[Any],
        config: FinetuneConfig,
        folder: RunFolder,
        *,
        listener: Listener = lambda event: None,
        should_stop: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._accelerator = accelerator
        self._stage = stage
        self._config = config
        self._folder = folder
        self._should_stop = should_stop
        self._clock = clock
        self._started_s = 0.0  # of a run without interruptions
        self._uncounted: list[dict[str, Tensor]] = []
        steps: StageConfig = getattr(config, stage.name)
        self._stage_config = steps
        accelerator.gradient_accumulation_steps = steps.gradient_accumulation_steps
        accelerator.step = 0  # the stage before may have accumulated another number
        self._sharing = Sharing(accelerator)
        if steps.batch_size < accelerator.num_processes:
            field = f"{stage.name}.batch_size"
            raise FinetuningConfigError(
                f"{field}: {accelerator.num_processes} processes cannot share {steps.batch_size} windows: "
                "raise it, or start fewer processes",
                field=field,
            )
        num_windows = len(training)  # type: ignore[arg-type]
        windows_per_step = steps.batch_size * steps.gradient_accumulation_steps
        self.steps_per_epoch = steps_per_epoch(steps, stage.name, num_windows, windows_per_step)
        self._order = EpochOrder(
            config.seed, stage.name, num_windows, self.steps_per_epoch * windows_per_step
        )
        load = partial(
            DataLoader,
            batch_size=steps.batch_size,
            collate_fn=_as_it_is,  # the dataset makes whole batches
            generator=torch.Generator(),  # else it draws from the one that a step seeds
            num_workers=config.num_workers,
            pin_memory=accelerator.device.type == "cuda",
        )
        self._training: DataLoader[Any] = load(training, sampler=self._order)
        self._validation: DataLoader[Any] = load(validation)
        stage.trained.to(accelerator.device)
        optimiser = make_optimiser(stage.trained, steps.optimiser)
        self._num_steps = self.steps_per_epoch * steps.epochs
        self._schedule = make_schedule(optimiser, steps.optimiser, self._num_steps)
        self._learning_rate = float(self._schedule.get_last_lr()[0])
        self._progress = Progress()
        self._state = StageState(stage.trained, optimiser, self._schedule, accelerator.scaler)
        if (path := folder.state(stage.name)).exists():
            self._progress = self._state.load(path)
        self._listener = listener
        self._module: nn.Module
        self._module, self._optimiser = accelerator.prepare(stage.trained, optimiser)

    def train(self) -> StageResult:
        """Train to the end. The stage's module then has its best weights.

        Raises: TrainingStopped, TrainingDiverged, OutOfMemory, DiskFull. The best checkpoint so far is kept.
        """
        self._started_s = self._clock() - self._progress.trained_s
        try:
            with fast_products(self._accelerator.device):
                while not self._is_over():
                    self._train_epoch()
                    self._end_epoch()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise OutOfMemory(
                f"the device has too little memory for a training step ({reason}): lower batch_size and "
                "raise gradient_accumulation_steps as much"
            ) from error
        if not self._progress.is_finished:
            self._progress.is_finished = True
            self._save()
        return self._result()

    def _is_over(self) -> bool:
        progress, config = self._progress, self._stage_config
        if progress.is_finished or progress.epoch >= config.epochs:
            return True
        if config.patience is None or progress.best_epoch is None:
            return False
        return progress.epoch - 1 - progress.best_epoch >= config.patience

    def _train_epoch(self) -> None:
        """Train the rest of the current epoch."""
        progress = self._progress
        num_batches = self._stage_config.gradient_accumulation_steps
        self._module.train()
        step_of_epoch = progress.step - progress.epoch * self.steps_per_epoch
        if step_of_epoch == self.steps_per_epoch:  # saved between the last step and its validation
            return
        first_step, timer = progress.step, self._clock()
        saved_s = timer
        self._order.epoch = progress.epoch
        self._order.num_taken = step_of_epoch * num_batches * self._stage_config.batch_size
        for index, batch in enumerate(self._training):
            # A step's losses are read once it is complete.
            self._uncounted.append(
                self._train_batch(batch, progress.step * num_batches + index % num_batches)
            )
            if (index + 1) % num_batches:
                continue
            progress.step += 1
            is_logged = progress.step % LOG_INTERVAL_STEPS == 0 or progress.step == self._num_steps
            if is_logged or self._accelerator.device.type == "cpu":
                seconds_per_step = (self._clock() - timer) / (progress.step - first_step)
                self._report_step(self._uncounted[-num_batches:], seconds_per_step, is_logged)
            if len(self._uncounted) >= LOG_INTERVAL_STEPS * num_batches:
                self._count()
            self._stop_if_asked()
            if self._any(self._clock() - saved_s > self._config.save_interval_s):
                self._save()
                saved_s = self._clock()
        self._count()

    def _train_batch(self, batch: Any, index: int) -> dict[str, Tensor]:
        """Train on batch ``index``; returns its losses, as a mean over all processes."""
        accelerator, share = self._accelerator, self._sharing.share(batch)
        self._sharing.seed(self._config.seed, self._stage.name, index)
        with accelerator.accumulate(self._module):
            with accelerator.autocast(), share.drawing:
                losses = self._stage.losses(self._module, share.windows)
            losses = {name: value * share.weight for name, value in losses.items()}
            accelerator.backward(losses["loss"])
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(self._module.parameters(), self._stage_config.optimiser.clip_norm)
            self._learning_rate = float(self._schedule.get_last_lr()[0])
            self._optimiser.step()
            if accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped:
                self._schedule.step()
            self._optimiser.zero_grad()
        return {name: value.detach() for name, value in losses.items()}

    def _end_epoch(self) -> None:
        """Validate, keep the best weights, save, report."""
        progress = self._progress
        self._listener({"event": "phase", "phase": "validating", "stage": self._stage.name})
        losses = self._validate()
        self._check_finite(losses["loss"])
        is_best = progress.best_loss is None or losses["loss"] < progress.best_loss
        train_loss = progress.epoch_loss_sum / max(1, progress.epoch_num_losses)
        if is_best:
            progress.best_loss, progress.best_epoch = losses["loss"], progress.epoch
            if self._accelerator.is_main_process:
                best = self._folder.best(self._stage.name)
                with disk_errors(best, SafetensorError):
                    self._stage.trained.save_pretrained(best)
        progress.epoch += 1
        progress.epoch_loss_sum, progress.epoch_num_losses = 0.0, 0
        self._save()
        parts = {f"validation_{name}": value for name, value in losses.items()}
        rest = {"is_best": is_best, "trained_s": progress.trained_s}
        self._send("epoch", is_logged=True, train_loss=train_loss, **parts, **rest)

    @torch.no_grad()
    def _validate(self) -> dict[str, float]:
        accelerator = self._accelerator
        self._module.eval()
        # The same draws each time make epochs comparable.
        self._sharing.seed(self._config.seed, self._stage.name, VALIDATION)
        collected: dict[str, list[Tensor]] = {}
        for batch in self._validation:
            self._stop_if_asked()
            share = self._sharing.share(batch)
            with accelerator.autocast(), share.drawing:
                # Not the wrapper for several processes, in which all have to compute as many batches.
                losses = self._stage.validation_losses(
                    self._stage.trained, share.windows, self._config.data.pred_len
                )
            for name, value in losses.items():
                collected.setdefault(name, []).append(value.float())
        num_windows = len(self._validation.dataset)  # type: ignore[arg-type]
        sums = torch.stack([torch.cat(values).sum() for values in collected.values()])
        # From the first process: all must decide alike, to the last bit.
        means = broadcast(accelerator.reduce(sums) / num_windows)
        return dict(zip(collected, means.tolist(), strict=True))

    def _report_step(self, losses: list[dict[str, Tensor]], seconds_per_step: float, is_logged: bool) -> None:
        means = {name: torch.stack([batch[name] for batch in losses]).mean() for name in losses[0]}
        if self._accelerator.num_processes > 1:
            means = self._accelerator.reduce(means, reduction="mean")  # of all processes
        values = {name: float(value) for name, value in means.items()}
        self._check_finite(values["loss"])
        seconds_left = round((self._num_steps - self._progress.step) * seconds_per_step, 1)
        rest = {"learning_rate": self._learning_rate, "seconds_left": seconds_left}
        self._send("step", is_logged=is_logged, **values, **rest)

    def _send(self, kind: str, **content: Any) -> None:
        """Send an event with the position that ``_progress`` holds."""
        progress, num_epochs = self._progress, self._stage_config.epochs
        position = {
            "stage": self._stage.name,
            "epoch": min(-(-progress.step // self.steps_per_epoch), num_epochs),
            "num_epochs": num_epochs,
            "step": progress.step,
            "num_steps": self._num_steps,
            "best_validation_loss": progress.best_loss,
        }
        self._listener({**position, "event": kind, **content})

    def _check_finite(self, loss: float) -> None:
        if math.isfinite(loss):
            return
        stage, step = self._stage.name, self._progress.step
        field = f"{stage}.optimiser.learning_rate"
        raise TrainingDiverged(
            f"the {stage}'s loss is {loss} after {step} steps: lower {field}, or use mixed_precision no or "
            "bf16; the best checkpoint so far is kept",
            field=field,
            details={"stage": stage, "step": step},
        )

    def _count(self) -> None:
        """Add the losses of the batches since the last call to the epoch's sum."""
        if losses := self._uncounted:
            total_of_process = torch.stack([batch["loss"] for batch in losses]).sum()
            total = float(self._accelerator.reduce(total_of_process, reduction="mean"))
            self._check_finite(total)
            self._progress.epoch_loss_sum += total
            self._progress.epoch_num_losses += len(losses)
            losses.clear()

    def _stop_if_asked(self) -> None:
        """If a stop is requested, save and raise TrainingStopped."""
        if self._any(self._should_stop()):
            self._save()
            raise TrainingStopped("training was stopped on request: start it again to continue from here")

    def _any(self, is_so: bool) -> bool:
        """Whether this holds in any process: all must stop, or save, at the same step."""
        if self._accelerator.num_processes == 1:
            return is_so
        if is_so:
            self._accelerator.set_trigger()
        return bool(self._accelerator.check_trigger())

    def _save(self) -> None:
        self._count()
        self._progress.trained_s = self._clock() - self._started_s
        if self._accelerator.is_main_process:
            self._state.save(self._folder.state(self._stage.name), self._progress)

    def _result(self) -> StageResult:
        progress = self._progress
        if progress.best_loss is None or progress.best_epoch is None:
            raise RuntimeError("a stage has at least one epoch")
        self._accelerator.wait_for_everyone()  # the first process writes it
        best = type(self._stage.trained).from_pretrained(self._folder.best(self._stage.name))
        self._stage.trained.load_state_dict(best.state_dict())
        self._stage.trained.eval()
        if self._accelerator.device.type != "cpu":  # on the CPU it would still query GPUs
            self._accelerator.free_memory()
        return StageResult(
            progress.best_loss, progress.best_epoch + 1, progress.epoch, progress.step, progress.trained_s
        )


def _as_it_is(batch: Any) -> Any:
    return batch
