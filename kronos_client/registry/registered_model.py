"""One registered model: its metadata, and a check that its files did not change.

Processes of several machines read and write the model folder: its lock and its jobs' folders are here too.
Errors of reading reach jobs: they name the model and the file, never the path.
"""

import fcntl
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, PositiveFloat, PositiveInt, ValidationError

from kronos_client.contract.calibration import Calibration
from kronos_client.contract.errors import first_reason
from kronos_model.checkpoints.source import CONFIG_NAME, WEIGHTS_NAME
from kronos_model.errors import CheckpointError, CheckpointMissing

RUNS: Final = ".runs"


def job_folder(model_folder: Path, job_id: str) -> Path:
    """The folder of a finetuning job or backtest. Any text may be an id, so the name is a hash of it."""
    return model_folder / RUNS / hashlib.sha256(job_id.encode()).hexdigest()[:32]


def output_folder(model_folder: Path, job_id: str) -> Path:
    """What the job itself writes: training's output, or a backtest's forecasts and report."""
    return job_folder(model_folder, job_id) / "run"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the model folder's lock: one writer at a time. Raises OSError if its file cannot be written."""
    with (folder / ".lock").open("a") as file:
        with suppress(OSError):  # a network folder without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def reading(what: str, remedy: str = "") -> Iterator[None]:
    """Raise CheckpointError with ``what`` if it cannot be read, or its content cannot be used."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{what} cannot be read: {reason_of(error)}.") from error
    except ValidationError as error:
        raise CheckpointError(f"{what} cannot be used: {first_reason(error)}.{remedy}") from None


def entries_in(folder: Path, what: str) -> Sequence[str]:
    """Names in a folder; none if it does not exist."""
    with reading(f"The folder of {what}"), suppress(FileNotFoundError, NotADirectoryError):
        return [entry.name for entry in folder.iterdir()]
    return []


def is_inside(folder: Path, path: Path) -> bool:
    """Whether a path, with all links followed, lies in a folder. It need not exist."""
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # links in a circle
        return False


def reason_of(error: OSError) -> str:
    """The system's message, without the path that the error's own text has."""
    return error.strerror or type(error).__name__


def sha256_of(path: Path) -> str:
    """A file's SHA-256, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


METADATA_NAME: Final = "metadata.json"
FILES: Final = tuple(
    f"{part}/{name}" for part in ("model", "tokenizer") for name in (CONFIG_NAME, WEIGHTS_NAME)
)


class Metadata(BaseModel):
    """A registered model's ``metadata.json``. Further fields are kept unchanged."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str
    version: PositiveInt
    job_id: str
    job_fingerprint: str
    created_at: AwareDatetime
    trained: Literal[True]
    max_context: PositiveInt
    lookback: PositiveInt | None = None
    min_lookback: PositiveInt | None = None
    pred_len: PositiveInt | None = None
    clip: PositiveFloat | None = None
    parent: Any = None
    config: Any = None
    data_fingerprint: Any = None
    metrics: Any = None
    evaluation: Any = None
    calibration: Calibration | None = None
    sha256: dict[str, str]

    @property
    def coverage(self) -> float | None:
        """The share of closes that its 80 % intervals held in the backtest that is recorded with it."""
        try:
            (scores, *_) = self.evaluation["models"].values()
            return float(scores["scores"]["coverage"]["0.8"])
        except (KeyError, TypeError, ValueError):
            return None


@dataclass(frozen=True)
class RegisteredModel:
    """A model that finetuning registered. Equal ones had the same files when they were read.

    Attributes:
        folder: Holds ``model/``, ``tokenizer/`` and ``metadata.json``.
        fingerprint: SHA-256 of ``metadata.json``, which holds the SHA-256 of each file.
    """

    name: str
    version: int
    folder: Path
    fingerprint: str
    metadata: Metadata = field(compare=False, repr=False)

    @property
    def reference(self) -> str:
        """``name@version``."""
        return f"{self.name}@{self.version}"

    def verify(self) -> None:
        """Raises CheckpointError or CheckpointMissing if a file is not the registered one."""
        for name in FILES:
            path, what = self.folder / name, f"{name} of the registered model {self.reference}"
            if not is_inside(self.folder, path):
                raise CheckpointError(f"{what} is a link that leads out of it. Register the model again.")
            with reading(what):
                try:
                    sha256 = sha256_of(path)
                except FileNotFoundError as error:
                    message = f"The registered model {self.reference} has no {name}."
                    raise CheckpointMissing(message) from error
            if sha256 != self.metadata.sha256.get(name):
                raise CheckpointError(
                    f"{what} was changed since it was registered: its SHA-256 differs. "
                    "Register the model again."
                )


def read_registered(root: Path, name: str, version: int) -> RegisteredModel:
    """Read the version in ``<root>/<name>/<version>``. The caller has checked both names.

    Errors reach jobs: they name the model and the file, never the path.

    Raises:
        CheckpointMissing: It has no metadata: it is not a version yet, or no longer.
        CheckpointError: Its metadata cannot be used, or a link leads out of the root.
    """
    folder, model = root / name / str(version), f"registered model {name}@{version}"
    path, what = folder / METADATA_NAME, f"{METADATA_NAME} of the {model}"
    if not is_inside(root, path):
        raise CheckpointError(f"The {model} is a link that leads out of the folder.")
    with reading(what):
        try:
            content = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError) as error:
            message = f"The {model} has no {METADATA_NAME}: it was partly deleted. Delete its folder."
            raise CheckpointMissing(message) from error
        metadata = Metadata.model_validate_json(content)
    if (metadata.name, metadata.version) != (name, version):
        raise CheckpointError(
            f"{what} belongs to {metadata.name}@{metadata.version}: the folder was moved or copied. "
            "Restore its place."
        )
    return RegisteredModel(name, version, folder, hashlib.sha256(content).hexdigest(), metadata)
