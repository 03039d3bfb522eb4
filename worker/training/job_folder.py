"""A job's folder, where a worker continues the work of an earlier one. No torch.

<model folder>/.runs/<hash of id>/job.json      notes: hash of the job's content, number of starts
                                  config.json   config of the training process
                                  candles/      candles that the job carries, as CSV
                                  data, start/  links to this worker's data folder and start models
                                  run/          output of training; best/ if the job ended early; of a
                                                backtest forecasts.sqlite, and then its report
                                  result.json   the result, once the model is registered or the report made
"""

import csv
import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from kronos_client.backtesting import store
from kronos_client.contract.jobs import PreparedInstrument
from kronos_client.registry.registered_model import job_folder, output_folder
from kronos_model.atomic_write import atomic_write
from kronos_model.checkpoints.source import read_metadata
from kronos_model.errors import KronosError
from kronos_model.finetuning.config import parse_config

CONFIG_FILE: Final = "config.json"
RESULT_FILE: Final = "result.json"
CANDLES: Final = "candles"
INSTRUMENT_COLUMN: Final = "instrument"
TIME_COLUMN: Final = "timestamps"
SAVES: Final = ("*/state.safetensors", store.FILE)
"""Patterns of what a job saves below ``run``, to continue from."""
PARTS: Final = {"predictor": "model", "tokenizer": "tokenizer"}
"""The part of a checkpoint that each stage trains."""


@dataclass(frozen=True)
class JobNotes:
    """What one worker leaves for the next.

    Attributes:
        fingerprint: Hash of the job's content.
        start: The registered model that each part (``model``, ``tokenizer``) starts from.
        queued_s: Seconds from the submission to the first start.
        num_starts: Starts that the training process reported.
        saved_at_ns: Time of the state that the last process started from; 0 if there was none.
        num_starts_at_save: Starts from that state, without those that a worker ended.
    """

    fingerprint: str
    start: dict[str, str]
    queued_s: float
    num_starts: int = 0
    saved_at_ns: int = 0
    num_starts_at_save: int = 0


class JobFolder:
    """One job's folder. Only the job's holder writes there. Paths in the config are relative to it."""

    def __init__(self, model_folder: Path, job_id: str) -> None:
        self.model_folder = model_folder
        self.root = job_folder(model_folder, job_id)
        self.run = output_folder(model_folder, job_id)
        self._checkpoint = self.run / "checkpoint"  # of a completed run; it appears whole
        self._best = self.run / "best"
        self._of_training = (self.root / CANDLES, *(self.run / stage for stage in PARTS))

    def notes(self, fingerprint: str) -> JobNotes | None:
        """An earlier worker's notes, if any. The files of another job are removed."""
        with suppress(TypeError):  # no notes, or of another release
            notes = JobNotes(**(self.read("job.json") or {}))
            if notes.fingerprint == fingerprint:
                return notes
        _remove(self.root)
        return None

    def write_notes(self, notes: JobNotes) -> None:
        self.write("job.json", asdict(notes))

    def read(self, name: str) -> dict[str, Any] | None:
        """Read a JSON file; None if it is missing or damaged."""
        try:
            content = json.loads((self.root / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return content if isinstance(content, dict) else None

    def write(self, name: str, content: Mapping[str, object]) -> None:
        with atomic_write(self.root / name) as staging:
            staging.write_text(json.dumps(content), encoding="utf-8")

    def write_candles(self, instruments: Sequence[PreparedInstrument]) -> None:
        """Write one CSV file per instrument, with its name in a column: not every name can name a file."""
        folder = self.root / CANDLES
        folder.mkdir(parents=True, exist_ok=True)
        for index, instrument in enumerate(instruments):
            staging = folder / f".{index}.tmp"
            with staging.open("w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file)
                writer.writerow([INSTRUMENT_COLUMN, TIME_COLUMN, *instrument.columns])
                columns = (column.tolist() for column in instrument.columns.values())
                for row in zip(instrument.timestamps.texts, *columns, strict=True):
                    writer.writerow([instrument.id, *row])
            staging.replace(folder / f"{index}.csv")

    def link(self, name: str, target: Path) -> None:
        """Link a path, the same for all workers, to this worker's ``target``."""
        link = self.root / name
        link.parent.mkdir(parents=True, exist_ok=True)
        staging = link.with_name(f".{link.name}.tmp")
        staging.unlink(missing_ok=True)
        staging.symlink_to(target.absolute())
        staging.replace(link)

    def saved_at_ns(self) -> int:
        """When the job last saved its state; 0 if it has not."""
        with suppress(OSError):  # training is replacing the state
            files = (file for pattern in SAVES for file in self.run.glob(pattern))
            return max((file.stat().st_mtime_ns for file in files), default=0)
        return 0

    def drop_forecasts(self) -> None:
        """Remove a backtest's forecasts: its report is written, or the job has failed."""
        with suppress(OSError):
            (self.run / store.FILE).unlink(missing_ok=True)

    def best_so_far(self) -> str | None:
        """The path of the checkpoint that ``keep_best`` kept, relative to the model folder.

        If only one part was trained, the checkpoint holds only that part.
        """
        for kept in (self._checkpoint, self._best):
            if kept.exists():
                return kept.relative_to(self.model_folder).as_posix()
        return None

    def keep_best(self) -> None:
        """Remove what only training needs, and keep the best checkpoint.

        If the job of a completed run is sent again, this checkpoint is registered without further training.
        """
        for state in self.run.glob("*/state.safetensors"):
            state.unlink(missing_ok=True)
        if self._checkpoint.exists():
            _remove(self._best)
        else:
            self._assemble_best()
        _remove(*self._of_training)

    def keep_result(self) -> None:
        """Remove all weights and states: the model is registered."""
        _remove(*self._of_training, self._checkpoint, self._best)

    def _assemble_best(self) -> None:
        """Combine the best of each stage into one checkpoint. If there is none, an earlier one stays.

        Renames need no disk space. If this is interrupted, the next call completes it.
        """
        staging = self.run / ".best.tmp"
        for stage, part in PARTS.items():
            best = self.run / stage / "best"
            if best.exists():
                staging.mkdir(exist_ok=True)
                _remove(staging / part)
                best.rename(staging / part)
        if not staging.exists():
            return
        if (staging / "model").exists():
            self.write("run/.best.tmp/metadata.json", {"trained": True} | self._max_context())
        _remove(self._best)
        staging.rename(self._best)

    def _max_context(self) -> dict[str, object]:
        """``max_context`` as in a completed run's metadata; empty if only the hub has it."""
        with suppress(KronosError):  # the checkpoint also loads without it
            config = parse_config(self.read(CONFIG_FILE) or {})
            if config.max_context is not None:
                return {"max_context": config.max_context}
            if not isinstance(config.start.model, str):
                return {"max_context": config.data.window}
            known = read_metadata(config.start.model).get("max_context")
            return {"max_context": known} if isinstance(known, int) else {}
        return {}


def _remove(*folders: Path) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
