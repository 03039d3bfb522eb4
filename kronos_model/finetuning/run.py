"""A whole finetuning run: read the data, train each stage, compare, and write the checkpoint."""

import platform
import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors import SafetensorError

from kronos_model.atomic_write import disk_errors
from kronos_model.devices.probe import TorchProbe, short_reason
from kronos_model.devices.resolution import resolve_device
from kronos_model.engine.choice import EngineChoice
from kronos_model.errors import DeviceLost, FinetuningConfigError, TrainingDataError, TrainingStopped
from kronos_model.evaluation.windows import Windows, spread
from kronos_model.finetuning.advice import split_warnings
from kronos_model.finetuning.config import FinetuneConfig
from kronos_model.finetuning.data import read_files
from kronos_model.finetuning.final_evaluation import evaluate_on_test
from kronos_model.finetuning.group import accelerated, copy_from_first, difference, lost_peer
from kronos_model.finetuning.reporting import Event, Listener, MetricsFile, tensorboard
from kronos_model.finetuning.run_folder import RunFolder, comparable
from kronos_model.finetuning.split import Split, split_windows
from kronos_model.finetuning.stages.batches import BarStore, WindowDataset
from kronos_model.finetuning.stages.loop import StageLoop, StageResult
from kronos_model.finetuning.stages.saved_state import load_progress
from kronos_model.finetuning.stages.stage import PredictorStage, Stage, TokenizerStage
from kronos_model.finetuning.starting_point import StartingPoint, starting_point, with_revisions


@dataclass(frozen=True)
class TrainingResult:
    """The result of a run.

    Attributes:
        checkpoint: folder with ``model/``, ``tokenizer/`` and ``metadata.json``; load it by its path.
        metadata: the content of that file: parent, config, data_fingerprint, metrics by stage, evaluation, …;
            empty in processes other than the first.
        device_warning: the reason if ``device`` is not the requested one.
    """

    checkpoint: Path
    metadata: dict[str, Any]
    device: str
    device_warning: str | None


def finetune(
    config: FinetuneConfig,
    output: Path,
    *,
    listeners: Sequence[Listener] = (),
    should_stop: Callable[[], bool] = lambda: False,
    engine: EngineChoice = "auto",
) -> TrainingResult:
    """Train as configured, in the folder ``output``. The starting checkpoint's files are not changed.

    A call with the folder of an interrupted run resumes it from the last save. The result is the same as
    without the interruption. Under torchrun each process calls this; only the first one writes and reports.

    Args:
        listeners: receive events; see ``reporting.py``.
        should_stop: called after each step; if true, the state is saved and TrainingStopped raised.
        engine: what computes the forecasts of the comparison, as ``kind`` of ``build_engine``.

    Raises FinetuningError, CheckpointError, and their subclasses; DeviceError, DeviceLost, OutOfMemory.
    """
    device, device_warning = resolve_device(config.training_device)
    with accelerated(device, config.mixed_precision) as accelerator:
        folder = RunFolder(output)
        is_main = accelerator.is_main_process
        is_group = accelerator.num_processes > 1
        with folder.locked(is_group=is_group) if is_main else nullcontext():
            run = _Run(config, folder, accelerator, [*listeners] if is_main else [], should_stop, engine)
            try:
                run.start(device_warning)
                # Other processes do not wait for the comparison: it may take longer than a group's timeout.
                metadata = run.finish() if is_main else {}
            except RuntimeError as error:
                if (lost := lost_peer(accelerator, error)) is not None:
                    raise lost from error
                if TorchProbe().is_lost(accelerator.device):
                    reason = f"{accelerator.device} failed ({short_reason(error)})"
                    raise DeviceLost(f"{reason}: start it again to continue from the last save") from error
                raise
        return TrainingResult(folder.checkpoint, metadata, _name(accelerator.device), device_warning)


def _name(device: torch.device) -> str:
    return "cpu" if device.type == "cpu" else str(device)  # Accelerate numbers the CPU in a group


@dataclass
class _Run:
    given: FinetuneConfig
    folder: RunFolder
    accelerator: Accelerator
    listeners: list[Listener]
    should_stop: Callable[[], bool]
    engine: EngineChoice
    split: Split = field(init=False)
    bars: BarStore = field(init=False)
    data: dict[str, Any] = field(init=False)
    models: StartingPoint = field(init=False)

    def __post_init__(self) -> None:
        self.config = self.given
        self.results: dict[str, StageResult] = {}
        self.metrics = MetricsFile(self.folder.metrics)
        if self.accelerator.is_main_process:
            files = self.metrics, tensorboard(self.folder.root / "tensorboard")
            self.listeners.extend(filter(None, files))

    def _send(self, event: Event) -> None:
        for listener in self.listeners:
            listener(event)

    def start(self, device_warning: str | None) -> None:
        """Read, load and train, in every process."""
        config = self.config
        self.accelerator.wait_for_everyone()  # until the first has locked the folder
        is_resumed = self.folder.is_begun
        self._check_group(is_resumed)
        if is_resumed:
            self.folder.check(config)
        started = {"device": _name(self.accelerator.device), "device_warning": device_warning}
        self._send({"event": "started", **started, "resumed": is_resumed})
        self._send({"event": "phase", "phase": "Reading the candles"})
        self._read_data(is_resumed)
        if self.should_stop():
            raise TrainingStopped("training was stopped on request before it began: start it again")
        if is_resumed:
            config = self.config = with_revisions(config, self.folder.read("parent.json"))
        self._send({"event": "phase", "phase": "Loading the model"})
        self.models = starting_point(config)
        if config.data.window > self.models.max_context + 1:
            most = self.models.max_context + 1 - config.data.pred_len
            remedy = f"lower data.lookback to at most {most}" if most > 1 else "lower data.pred_len"
            raise FinetuningConfigError(
                f"data.lookback and data.pred_len make windows of {config.data.window} bars, but the model "
                f"sees {self.models.max_context}: {remedy}",
                field="data.lookback",
                details={"max_context": self.models.max_context},
            )
        if (self.folder.checkpoint / "metadata.json").exists():
            return
        if self.accelerator.is_main_process:
            parameters = chain(self.models.model.parameters(), self.models.tokenizer.parameters())
            self.folder.check_room(sum(parameter.numel() for parameter in parameters))
            if not is_resumed:
                self.folder.begin(self.given, self.data, self.models.parent)
        for index in range(len(config.stages)):
            self._train(index)

    def _check_group(self, is_resumed: bool) -> None:
        """Refuse processes that have not all the same config and folder."""
        folder = {"output": [self.folder.holder(), is_resumed]}
        if (found := difference(self.accelerator, folder | comparable(self.config))) is None:
            return
        field, where = found
        remedy = "start all processes with one config"
        if field == "output":
            remedy = f"{self.folder.root} has to be one folder that all machines mount"
        raise FinetuningConfigError(
            f"{field} is not the same in all processes: {where}; {remedy}", field=field
        )

    def finish(self) -> dict[str, Any]:
        """Compare and write the checkpoint; returns its metadata."""
        if (self.folder.checkpoint / "metadata.json").exists():  # by an earlier start
            metadata = self.folder.read("checkpoint/metadata.json")
        else:
            data = self.bars.instruments, self.split, self.accelerator.device
            evaluation = evaluate_on_test(
                self.config,
                self.models,
                *data,
                losses=self.metrics.validation_losses(self.config.stages[-1]),
                listener=self._send,
                should_stop=self.should_stop,
                engine=self.engine,
            )
            metadata = self._write_checkpoint(evaluation)
        self._send({"event": "done", "checkpoint": str(self.folder.checkpoint), "metadata": metadata})
        return metadata

    def _read_data(self, is_resumed: bool) -> None:
        instruments, report = read_files(self.config.data.paths, self.config.data, "data.")
        self.split = split_windows(instruments, self.config.data)
        self.bars = BarStore(instruments)
        self.data = {"report": report.as_dict(), "split": self.split.as_dict()}
        read = f"{report.num_bars} bars of {len(report.instruments)} instruments, {report.fingerprint}"
        if (found := difference(self.accelerator, {"candles": read})) is not None:
            raise TrainingDataError(
                f"the processes read different candles: {found[1]}; give all machines the same files",
                field="data.path",
            )
        if is_resumed and self.folder.read("data.json")["report"]["fingerprint"] != report.fingerprint:
            raise TrainingDataError(
                f"the run in {self.folder.root} was started with other candles: restore them, or choose "
                "another folder",
                field="data.path",
            )
        windows = ", ".join(f"{num:,} {part}" for part, num in self.data["split"]["num_windows"].items())
        warnings = split_warnings(self.split, instruments, self.config)
        lines = [report.summary(), f"Windows: {windows}", *(f"Warning: {text}" for text in warnings)]
        short = self.data | {"report": report.short(), "warnings": warnings}
        self._send({"event": "data", **short, "summary": "\n".join(lines)})

    def _train(self, index: int) -> None:
        config, data, start = self.config, self.config.data, self.models
        stage: Stage
        if config.stages[index] == "tokenizer":
            stage = TokenizerStage(start.tokenizer)
        else:
            num_targets = data.pred_len if config.predictor.objective == "forecast" else None
            stage = PredictorStage(start.model, start.tokenizer, config.predictor.sibling, num_targets)
        if self.accelerator.is_main_process:
            progress = load_progress(self.folder.state(stage.name))
            self.metrics.remove_after(stage.name, progress.step if progress else 0)

        def send(event: Event) -> None:
            self._send({**event, "stage_index": index, "num_stages": len(config.stages)})

        def dataset(windows: Windows) -> WindowDataset:
            return WindowDataset(self.bars, windows, data.lookbacks, data.pred_len, config.clip)

        validation = self.split.validation
        if (most := getattr(config, stage.name).validation_windows) is not None:
            validation = spread(validation, most)

        copy_from_first(self.accelerator, start.model, start.tokenizer)
        start.tokenizer.to(self.accelerator.device).eval()
        data_sets = dataset(self.split.train), dataset(validation)
        loop = StageLoop(
            self.accelerator, stage, *data_sets, config, self.folder,
            listener=send, should_stop=self.should_stop,
        )  # fmt: skip
        self._send({"event": "phase", "phase": "first step", "stage": stage.name})
        self.results[stage.name] = loop.train()

    def _write_checkpoint(self, evaluation: dict[str, Any] | None) -> dict[str, Any]:
        config, start = self.config, self.models
        metadata = {
            "trained": True,
            "max_context": start.max_context,
            "lookback": config.data.lookbacks.max,
            "min_lookback": config.data.lookbacks.min,
            "pred_len": config.data.pred_len,
            "clip": config.clip,
            "parent": start.parent,
            "config": self.given.model_dump(mode="json"),
            "data_fingerprint": self.data["report"]["fingerprint"],
            "metrics": {name: asdict(result) for name, result in self.results.items()},
            "evaluation": evaluation,
            "versions": {"python": platform.python_version(), "torch": version("torch")},
        }
        staging = self.folder.root / ".checkpoint.tmp"
        with disk_errors(self.folder.checkpoint, SafetensorError):
            shutil.rmtree(staging, ignore_errors=True)
            start.model.save_pretrained(staging / "model")
            start.tokenizer.save_pretrained(staging / "tokenizer")
            RunFolder(staging).write("metadata.json", metadata)
            staging.rename(self.folder.checkpoint)
        return metadata
