"""Registered models: the results of finetuning, in a folder that workers share. No torch.

    <folder>/<name>/<version>/model/         config.json, model.safetensors
                              tokenizer/     config.json, model.safetensors
                              metadata.json
    <folder>/<name>/.last               the highest version ever given
    <folder>/<name>/promotions.json     which version the name alone means; see ``promote``

Versions count from 1. A version appears whole or not at all, and never changes. A number is used once, even
if its folder is deleted. A name whose whole folder is deleted begins at 1 again.
"""

import errno
import logging
import re
import shutil
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pydantic import AwareDatetime, BaseModel, ConfigDict, PositiveInt, TypeAdapter

from kronos_client.contract.names import MODEL_NAME
from kronos_client.registry.registered_model import (
    FILES,
    METADATA_NAME,
    Metadata,
    RegisteredModel,
    entries_in,
    is_inside,
    locked,
    read_registered,
    reading,
    reason_of,
    sha256_of,
)
from kronos_model.atomic_write import atomic_write, disk_errors, sweep, sync
from kronos_model.checkpoints.names import bundled_names, comes_from_bundled, parent_of
from kronos_model.errors import CheckpointError, CheckpointMissing, DiskFull, FinetuningConfigError

FILE: Final = "promotions.json"


class Promotion(BaseModel):
    """One version that was promoted."""

    model_config = ConfigDict(frozen=True)

    version: PositiveInt
    promoted_at: AwareDatetime
    forced: bool


_PROMOTIONS: Final = TypeAdapter(list[Promotion])


def read_promotions(folder: Path) -> Sequence[Promotion]:
    """The promotions of the name with this folder, first to last; raises CheckpointError if it is damaged."""
    what = f"{FILE} of the registered model {folder.name}"
    with reading(what, " Delete it."), suppress(FileNotFoundError, NotADirectoryError):
        return _PROMOTIONS.validate_json((folder / FILE).read_bytes())
    return []


def promote(model: RegisteredModel, *, forced: bool) -> None:
    """Make a version what its name means. Raises CheckpointError, DiskFull."""
    folder = model.folder.parent
    with disk_errors(folder / FILE), locked(folder.parent):
        before = read_promotions(folder)
        if before and before[-1].version == model.version:
            return  # else the next rollback would change nothing
        now = datetime.now(UTC).replace(microsecond=0)
        _write(folder, [*before, Promotion(version=model.version, promoted_at=now, forced=forced)])


def roll_back(folder: Path) -> bool:
    """Forget the last promotion of the name with this folder; returns whether there was one.

    Raises CheckpointError, DiskFull.
    """
    if not folder.is_dir():  # then the model folder, which has the lock, may not exist either
        return False
    with disk_errors(folder / FILE), locked(folder.parent):
        promotions = read_promotions(folder)
        if promotions:
            _write(folder, promotions[:-1])
    return bool(promotions)


def _write(folder: Path, promotions: Sequence[Promotion]) -> None:
    with atomic_write(folder / FILE) as staging:
        staging.write_bytes(_PROMOTIONS.dump_json(list(promotions), indent=2))


MAX_VERSION: Final = 999_999
"""Higher numbers, such as a date, are not versions; after them no number would be left."""

_VERSION: Final = r"[1-9][0-9]{0,5}"
_REFERENCE: Final = re.compile(rf"(?P<name>{MODEL_NAME})(?:@(?P<version>{_VERSION}))?")
_STAGING: Final = ".staging-"
_LAST: Final = ".last"
_SAME: Final = ("job_id", "job_fingerprint", "sha256")
"""The fields in which a repeated registration equals the first."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DamagedModel:
    """An unusable version and the reason; ``version`` is None if the whole name is unusable."""

    name: str
    version: int | None
    reason: str

    @property
    def reference(self) -> str:
        """``name@version``."""
        return self.name if self.version is None else f"{self.name}@{self.version}"


def check_name(name: str) -> None:
    """Raises FinetuningConfigError if no model may be registered under this name."""
    if not re.fullmatch(MODEL_NAME, name):
        rule = "write up to 64 of a-z, 0-9, '.', '_' and '-', beginning with a letter or digit"
        raise FinetuningConfigError(f"{name[:100]!r} cannot be a model's name: {rule}", field="name")
    if name in bundled_names():
        raise FinetuningConfigError(f"{name!r} is a bundled model: choose another name", field="name")


class ModelRegistry:
    """The models of one folder. Any number of processes may read and register at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def resolve(self, text: str) -> RegisteredModel | None:
        """The model ``name@version``; for ``name`` its promoted version, else the newest; None without one.

        An invalid name never becomes part of a path. A name alone skips a version without metadata, which
        was partly deleted.

        Raises:
            CheckpointError: The model is damaged.
        """
        match = _REFERENCE.fullmatch(text)
        if match is None or match["name"] in bundled_names():
            return None
        name, versions = match["name"], self._versions(match["name"])
        if match["version"]:
            wanted = int(match["version"])
            return read_registered(self.folder, name, wanted) if wanted in versions else None
        promoted = [promotion.version for promotion in read_promotions(self.folder / name)]
        for version in (*filter(versions.__contains__, reversed(promoted)), *reversed(versions)):
            with suppress(CheckpointMissing):
                return read_registered(self.folder, name, version)
        return None

    def register(
        self, checkpoint: Path, name: str, *, job_id: str, fingerprint: str, metadata: Mapping[str, Any]
    ) -> RegisteredModel:
        """Copy config and weights of a checkpoint in as the next version of ``name``.

        The same job with the same content gets the version that it registered before. An id may come again
        with other content, so ``fingerprint``, the content's, counts too.

        Raises:
            FinetuningConfigError: The name is invalid, or has no version number left.
            CheckpointMissing, CheckpointError: The checkpoint lacks a file, or the metadata a field.
            DiskFull: No room, or no permission, to write.
        """
        check_name(name)
        if missing := [file for file in FILES if not (checkpoint / file).is_file()]:
            raise CheckpointMissing(f"The checkpoint of {name} has no {missing[0]}.")
        given = {**metadata, "job_id": job_id, "job_fingerprint": fingerprint}
        with suppress(CheckpointError):  # its parent may be damaged, and may be deleted later
            parent = self.resolve(str(parent_of(metadata)))
            if parent is not None and comes_from_bundled(parent.metadata.model_dump()):
                given["for_trying"] = True
        try:
            return self._register(checkpoint, name, given)
        except OSError as error:
            log.exception("%s could not be registered in %s", name, self.folder)
            raise DiskFull(
                f"The model {name} could not be registered: {reason_of(error)}. Make room in the folder of "
                "registered models, and let this process write there (KRONOS_MODEL_FOLDER)."
            ) from error

    def delete(self, reference: str) -> bool:
        """Delete the version ``name@version``, damaged or not; returns whether there was one.

        Raises:
            CheckpointError: The folder cannot be read.
            DiskFull: No permission to write.
        """
        match = _REFERENCE.fullmatch(reference)
        if match is None or not match["version"]:
            return False
        if int(match["version"]) not in self._versions(match["name"]):
            return False
        folder = self.folder / match["name"] / match["version"]
        try:
            # Without its metadata it is no version, for those who read it meanwhile.
            (folder / METADATA_NAME).unlink(missing_ok=True)
            shutil.rmtree(folder)
        except OSError as error:
            raise DiskFull(
                f"The model {reference} could not be deleted: {reason_of(error)}. Let this process write in "
                "the folder of registered models (KRONOS_MODEL_FOLDER)."
            ) from error
        return True

    def current(self, models: Iterable[RegisteredModel | DamagedModel]) -> Mapping[str, int]:
        """The version that each of the models' names means, of those that can be resolved."""
        found = {}
        for name in {model.name for model in models}:
            with suppress(CheckpointError):
                found[name] = self.resolve(name)
        return {name: model.version for name, model in found.items() if model is not None}

    def names(self, text: str) -> Sequence[str]:
        """The registered names, if a text may be one of them; none if the folder cannot be read."""
        with suppress(CheckpointError):
            entries = entries_in(self.folder, "registered models") if _REFERENCE.fullmatch(text) else ()
            return sorted(filter(re.compile(MODEL_NAME).fullmatch, entries))
        return []

    def list(self) -> Sequence[RegisteredModel | DamagedModel]:
        """Every version, by name and newest first. Raises CheckpointError if the folder cannot be read."""
        found: list[RegisteredModel | DamagedModel] = []
        entries = entries_in(self.folder, "registered models")
        for name in sorted(filter(re.compile(MODEL_NAME).fullmatch, entries)):
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
        """Ascending. Raises CheckpointError if they cannot be read."""
        folder = self.folder / name
        if not is_inside(self.folder, folder):
            raise CheckpointError(f"The registered model {name} is a link that leads out of the folder.")
        entries = entries_in(folder, f"the registered model {name}")
        return sorted(map(int, filter(re.compile(_VERSION).fullmatch, entries)))

    def _register(self, checkpoint: Path, name: str, given: Mapping[str, Any]) -> RegisteredModel:
        self.folder.mkdir(parents=True, exist_ok=True)
        sweep(self.folder, f"{_STAGING}*")
        sha256 = {file: sha256_of(checkpoint / file) for file in FILES}
        if done := self._registered_before(name, {**given, "sha256": sha256}):  # saves the room for a copy
            return done
        staging = self.folder / f"{_STAGING}{uuid.uuid4().hex}"
        try:
            given = {**given, "sha256": copy_checkpoint(checkpoint, staging)}
            (self.folder / name).mkdir(exist_ok=True)
            # A job that is delivered twice registers once. Without locks, the rename keeps versions apart.
            with locked(self.folder):
                if done := self._registered_before(name, given):
                    return done
                version = self._publish(staging, name, given)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        sync(self.folder / name)
        sync(self.folder)
        return read_registered(self.folder, name, version)

    def _publish(self, staging: Path, name: str, given: Mapping[str, Any]) -> int:
        """Make the staged folder the next version. A rename never replaces a folder that is not empty."""
        created_at = datetime.now(UTC).replace(microsecond=0)
        while True:
            version = max([self._last(name), *self._versions(name)]) + 1
            if version > MAX_VERSION:
                message = f"{name} has version {MAX_VERSION}, the highest possible: choose another name"
                raise FinetuningConfigError(message, field="name")
            known = {"name": name, "version": version, "created_at": created_at}
            with reading("The metadata"):
                content = Metadata.model_validate({**given, **known, "trained": True})
            with atomic_write(staging / METADATA_NAME) as path:
                path.write_text(content.model_dump_json(indent=2), encoding="utf-8")
            # Written before the version: a crash in between skips a number, and never uses one twice.
            with atomic_write(self.folder / name / _LAST) as path:
                path.write_text(f"{version}\n", encoding="ascii")
            try:
                staging.rename(self.folder / name / str(version))
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):  # else another process took the number
                    raise
            else:
                return version

    def _last(self, name: str) -> int:
        """The highest version ever used; 0 if unknown, so that the existing ones decide."""
        try:
            text = (self.folder / name / _LAST).read_text(encoding="ascii", errors="replace").strip()
        except FileNotFoundError:
            return 0
        return int(text) if re.fullmatch(_VERSION, text) else 0

    def _registered_before(self, name: str, given: Mapping[str, Any]) -> RegisteredModel | None:
        """The undamaged version that the same job registered with the same content, if any."""
        for version in reversed(self._versions(name)):
            with suppress(CheckpointError):  # a damaged one does not count
                model = read_registered(self.folder, name, version)
                if all(getattr(model.metadata, field) == given[field] for field in _SAME):
                    model.verify()
                    return model
        return None


def copy_checkpoint(checkpoint: Path, staging: Path) -> dict[str, str]:
    """Copy config and weights of both parts, synced to disk; returns SHA-256 by file."""
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
