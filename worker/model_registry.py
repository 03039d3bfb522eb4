"""Registered models: what finetuning made, in a folder that its workers share. No torch.

    <folder>/<name>/<version>/model/         config.json, model.safetensors
                              tokenizer/     likewise
                              metadata.json

Versions count from 1. One appears whole or not at all, and is never changed.
"""

import errno
import fcntl
import re
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from kronos_model.checkpoint_source import bundled_names
from kronos_model.errors import CheckpointError, CheckpointMissing, DiskFull, FinetuningConfigError
from worker.contract.names import MODEL_NAME
from worker.registered_model import (
    FILES,
    METADATA_NAME,
    Metadata,
    RegisteredModel,
    is_inside,
    read_registered,
    sha256_of,
    sync,
)

STAGING_AGE_S: Final = 24 * 3600
"""What is this old belongs to a registration that was ended in the middle."""

_VERSION: Final = r"[1-9][0-9]{0,8}"
_REFERENCE: Final = re.compile(rf"(?P<name>{MODEL_NAME})(?:@(?P<version>{_VERSION}))?")
_STAGING: Final = ".staging-"


@dataclass(frozen=True)
class DamagedModel:
    """A version that cannot be used, and why; without version, the whole name cannot be."""

    name: str
    version: int | None
    reason: str

    @property
    def reference(self) -> str:
        """``name@version``."""
        return self.name if self.version is None else f"{self.name}@{self.version}"


def check_name(name: str) -> None:
    """Raises FinetuningConfigError for what no model may be registered as."""
    if not re.fullmatch(MODEL_NAME, name):
        raise FinetuningConfigError(
            f"{name[:100]!r} cannot be a model's name: write up to 64 of a-z, 0-9, '.', '_' and '-', "
            "beginning with a letter or digit",
            field="name",
        )
    if name in bundled_names():
        raise FinetuningConfigError(f"{name!r} is a bundled model: choose another name", field="name")


class ModelRegistry:
    """The models of one folder. Any number of processes may read and register at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def resolve(self, text: str) -> RegisteredModel | None:
        """The model called ``name@version``, or the newest called ``name``; None where there is none.

        Bundled names are nobody else's, and what does not look like a name is never made a path of.

        Raises CheckpointError where it is there and damaged.
        """
        match = _REFERENCE.fullmatch(text)
        if match is None or match["name"] in bundled_names():
            return None
        versions = self._versions(match["name"])
        wanted = int(match["version"]) if match["version"] else max(versions, default=0)
        return read_registered(self.folder, match["name"], wanted) if wanted in versions else None

    def register(
        self, checkpoint: Path, name: str, *, job_id: str, metadata: Mapping[str, Any]
    ) -> RegisteredModel:
        """Copy a checkpoint in as the next version of ``name``; the same job gets the same one again.

        Args:
            checkpoint: folder that holds ``model/`` and ``tokenizer/``; only config and weights are copied.
            metadata: what finetuning says of it, with ``max_context``, the bars it may see.

        Raises:
            FinetuningConfigError: a name that cannot be one.
            CheckpointMissing, CheckpointError: the checkpoint lacks a file, or the metadata a field.
            DiskFull: no room, or no permission, to write.
        """
        check_name(name)
        if missing := [file for file in FILES if not (checkpoint / file).is_file()]:
            raise CheckpointMissing(f"The checkpoint folder '{checkpoint}' has no {missing[0]}.")
        try:
            return self._register(checkpoint, name, job_id, metadata)
        except OSError as error:
            raise DiskFull(
                f"The model could not be registered in {self.folder}: {error}. Make room there, and see to "
                "it that this process may write (KRONOS_MODEL_FOLDER)."
            ) from error

    def list(self) -> Sequence[RegisteredModel | DamagedModel]:
        """Every version, by name and newest first; raises CheckpointError where the folder cannot be read."""
        found: list[RegisteredModel | DamagedModel] = []
        for name in sorted(filter(re.compile(MODEL_NAME).fullmatch, _entries(self.folder))):
            try:
                versions = self._versions(name)
            except CheckpointError as error:
                found.append(DamagedModel(name, None, error.message))
                continue
            for version in reversed(versions):
                try:
                    found.append(read_registered(self.folder, name, version))
                except CheckpointError as error:
                    found.append(DamagedModel(name, version, error.message))
        return found

    def _versions(self, name: str) -> Sequence[int]:
        """Ascending; raises CheckpointError where they cannot be read."""
        folder = self.folder / name
        if not is_inside(self.folder, folder):
            raise CheckpointError(f"{folder} is a link that leads out of the folder of registered models.")
        return sorted(map(int, filter(re.compile(_VERSION).fullmatch, _entries(folder))))

    def _register(
        self, checkpoint: Path, name: str, job_id: str, metadata: Mapping[str, Any]
    ) -> RegisteredModel:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._sweep()
        if done := self._registered_by(job_id, name):
            return done
        staging = self.folder / f"{_STAGING}{uuid.uuid4().hex}"
        try:
            sha256 = _copy(checkpoint, staging)
            (self.folder / name).mkdir(exist_ok=True)
            with self._locked():
                if done := self._registered_by(job_id, name):
                    return done
                version = self._publish(staging, name, job_id, {**metadata, "sha256": sha256})
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        sync(self.folder / name)
        sync(self.folder)
        return read_registered(self.folder, name, version)

    def _publish(self, staging: Path, name: str, job_id: str, metadata: Mapping[str, Any]) -> int:
        """Make what is staged the next version. A rename never replaces a folder that holds anything."""
        created_at = datetime.now(UTC).replace(microsecond=0)
        while True:
            version = max(self._versions(name), default=0) + 1
            known = {"name": name, "version": version, "job_id": job_id, "created_at": created_at}
            try:
                content = Metadata.model_validate({**metadata, **known, "trained": True})
            except ValidationError as error:
                first = error.errors(include_url=False, include_input=False)[0]
                field = ".".join(map(str, first["loc"]))
                raise CheckpointError(f"The metadata's {field} cannot be used: {first['msg']}.") from None
            path = staging / METADATA_NAME
            path.write_text(content.model_dump_json(indent=2), encoding="utf-8")
            sync(path)
            sync(staging)
            try:
                staging.rename(self.folder / name / str(version))
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):  # another was faster
                    raise
            else:
                return version

    def _registered_by(self, job_id: str, name: str) -> RegisteredModel | None:
        """What the job registered before, if it did."""
        for version in reversed(self._versions(name)):
            with suppress(CheckpointError):  # a damaged one is nobody's
                model = read_registered(self.folder, name, version)
                if model.metadata.job_id == job_id:
                    return model
        return None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One registration at a time, so that a job which was delivered twice registers once."""
        with (self.folder / ".lock").open("a") as file:
            with suppress(OSError):  # a network folder without locks: versions are kept apart by the rename
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _sweep(self) -> None:
        """Remove what crashed registrations left."""
        for staging in self.folder.glob(f"{_STAGING}*"):
            with suppress(OSError):  # another registration may be removing it
                if time.time() - staging.stat().st_mtime > STAGING_AGE_S:
                    shutil.rmtree(staging)


def _entries(folder: Path) -> Sequence[str]:
    """Names in a folder, none where it is not there."""
    try:
        return [entry.name for entry in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read: {error}") from error


def _copy(checkpoint: Path, staging: Path) -> dict[str, str]:
    """Config and weights of both halves, on disk for good; SHA-256 by file."""
    sha256 = {}
    for name in FILES:
        target = staging / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(checkpoint / name, target)
        sync(target)
        sha256[name] = sha256_of(target)
    for part in {(staging / name).parent for name in FILES}:
        sync(part)
    return sha256
