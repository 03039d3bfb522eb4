"""A finetuning job's folder below the models' one: there any worker finds what an earlier one left. No torch.

<model folder>/.runs/<id, hashed>/job.json      what the job holds, hashed; its starts, also at one save
                                  config.json   for the training process
                                  candles/      those that the job carries, as CSV
                                  data, start/  links to what this worker sees elsewhere
                                  run/          the training process's; best/ once the job ended too early
                                  result.json   once the model is registered
"""

import csv
import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from kronos_client.contract.instruments import PreparedInstrument
from kronos_model.atomic_write import atomic_write
from kronos_model.checkpoints.source import read_metadata
from kronos_model.errors import KronosError
from kronos_model.finetuning.config import FinetuneConfig, parse_config

RUNS: Final = ".runs"
DATA_LINK: Final = "data"
START_LINKS: Final = "start"
CANDLES: Final = "candles"
INSTRUMENT_COLUMN: Final = "instrument"
TIME_COLUMN: Final = "timestamps"
PARTS: Final = {"predictor": "model", "tokenizer": "tokenizer"}
"""Of a checkpoint, by the stage that trains it."""


@dataclass(frozen=True)
class JobNotes:
    """What one worker leaves for the next.

    Attributes:
        fingerprint: of what the job holds.
        start: of each part (``model``, ``tokenizer``) the registered model that it starts from.
        queued_s: from the submission to the first start.
        num_starts: of the training process, as far as it reported them.
        saved_at_ns: of the state that the last process was started from; 0 if there was none.
        num_starts_at_save: of processes from that state which were not ended by a worker.
    """

    fingerprint: str
    start: dict[str, str]
    queued_s: float
    num_starts: int = 0
    saved_at_ns: int = 0
    num_starts_at_save: int = 0


class JobFolder:
    """One job's; its holder alone writes there. Paths in the config are relative to it."""

    def __init__(self, model_folder: Path, job_id: str) -> None:
        self.model_folder = model_folder
        self.root = model_folder / RUNS / hashlib.sha256(job_id.encode()).hexdigest()[:32]

    @property
    def config(self) -> Path:
        return self.root / "config.json"

    @property
    def run(self) -> Path:
        return self.root / "run"

    def notes(self, fingerprint: str) -> JobNotes | None:
        """An earlier worker's notes, if any. If they are another job's, its files are removed."""
        content = _read(self.root / "job.json")
        try:
            notes = None if content is None else JobNotes(**content)
        except TypeError:
            notes = None
        if notes is not None and notes.fingerprint == fingerprint:
            return notes
        shutil.rmtree(self.root, ignore_errors=True)
        return None

    def write_notes(self, notes: JobNotes) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        _write(self.root / "job.json", asdict(notes))

    def write_config(self, config: FinetuneConfig) -> None:
        _write(self.config, config.model_dump(mode="json"))

    def write_candles(self, instruments: Sequence[PreparedInstrument]) -> None:
        """One CSV file an instrument, with its name in a column: names need not be file names."""
        folder = self.root / CANDLES
        folder.mkdir(parents=True, exist_ok=True)
        for index, instrument in enumerate(instruments):
            staging = folder / f".{index}.tmp"
            with staging.open("w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file)
                writer.writerow([INSTRUMENT_COLUMN, TIME_COLUMN, *instrument.columns])
                columns = (column.tolist() for column in instrument.columns.values())
                for row in zip(instrument.timestamps, *columns, strict=True):
                    writer.writerow([instrument.id, *row])
            staging.replace(folder / f"{index}.csv")

    def link(self, name: str, target: Path) -> None:
        """Show the training process what this worker sees at ``target``, by a path that all workers have."""
        link = self.root / name
        link.parent.mkdir(parents=True, exist_ok=True)
        staging = link.with_name(f".{link.name}.tmp")
        staging.unlink(missing_ok=True)
        staging.symlink_to(target.absolute())
        staging.replace(link)

    def saved_at_ns(self) -> int:
        """When training last saved its state; 0 before that."""
        with suppress(OSError):  # one is replaced by the next just now
            return max((file.stat().st_mtime_ns for file in self.run.glob("*/state.safetensors")), default=0)
        return 0

    @property
    def _checkpoint(self) -> Path:
        """Of a run that was trained to its end; it appears whole."""
        return self.run / "checkpoint"

    @property
    def _best(self) -> Path:
        return self.run / "best"

    def best_so_far(self) -> str | None:
        """The checkpoint that ``keep_best`` kept, relative to the folder of models: loaded by its path.

        Where only one part of it was trained, it holds that alone.
        """
        kept = next((folder for folder in (self._checkpoint, self._best) if folder.exists()), None)
        return None if kept is None else kept.relative_to(self.model_folder).as_posix()

    def data_report(self) -> dict[str, Any]:
        """What the training process read."""
        return _read(self.run / "data.json") or {}

    def result(self) -> dict[str, Any] | None:
        """The job's result, once an earlier worker had it."""
        return _read(self.root / "result.json")

    def write_result(self, result: Mapping[str, Any]) -> None:
        _write(self.root / "result.json", result)

    def keep_best(self) -> None:
        """Remove what only training needs; the best checkpoint stays.

        A whole run's is found by the job when it is sent again: it is registered then, not trained again.
        """
        for state in self.run.glob("*/state.safetensors"):
            state.unlink(missing_ok=True)
        if self._checkpoint.exists():
            self._remove(self._best)
        else:
            self._assemble_best()
        self._remove(*(self.run / stage for stage in PARTS), self.root / CANDLES)

    def keep_result(self) -> None:
        """Remove what is registered now: all weights and states."""
        self._remove(*(self.run / stage for stage in PARTS), self._checkpoint, self._best)
        self._remove(self.root / CANDLES)

    def _assemble_best(self) -> None:
        """One checkpoint of the stages' best; an earlier attempt's stays if there is none.

        By renames, which need no room. Ended in between, the next call goes on where this one was.
        """
        staging = self.run / ".best.tmp"
        for stage, part in PARTS.items():
            best = self.run / stage / "best"
            if best.exists():
                staging.mkdir(exist_ok=True)
                self._remove(staging / part)
                best.rename(staging / part)
        if not staging.exists():
            return
        if (staging / "model").exists():
            _write(staging / "metadata.json", {"trained": True} | self._max_context())
        self._remove(self._best)
        staging.rename(self._best)

    def _max_context(self) -> dict[str, int]:
        """As the metadata of a whole run's checkpoint has it; empty if only the hub has it."""
        with suppress(KronosError):  # without it the checkpoint loads as well
            config = parse_config(_read(self.config) or {})
            if config.max_context is not None:
                return {"max_context": config.max_context}
            if not isinstance(config.start.model, str):
                return {"max_context": config.data.window}
            known = read_metadata(config.start.model).get("max_context")
            return {"max_context": known} if isinstance(known, int) else {}
        return {}

    def _remove(self, *folders: Path) -> None:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _write(path: Path, content: Mapping[str, Any]) -> None:
    with atomic_write(path) as staging:
        staging.write_text(json.dumps(content), encoding="utf-8")
