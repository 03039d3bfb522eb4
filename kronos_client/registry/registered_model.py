"""One registered model: its metadata, and a check that its files did not change."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, PositiveFloat, PositiveInt

from kronos_client.contract.calibration import Calibration
from kronos_client.registry.model_folder import is_inside, reading, sha256_of
from kronos_model.checkpoints.source import CONFIG_NAME, WEIGHTS_NAME
from kronos_model.errors import CheckpointError, CheckpointMissing

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
