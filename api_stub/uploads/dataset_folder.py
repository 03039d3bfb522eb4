"""The data folder. Uploaded files appear in it complete, checked, and under a safe name."""

import asyncio
import errno
import os
import re
import shutil
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from pydantic import BaseModel

from api_stub.problems import HttpCode, HttpError
from api_stub.settings import ApiSettings
from api_stub.uploads.dataset_process import read_dataset
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_model.atomic_write import sync

DATASET_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\.(csv|parquet|pq)")
SUFFIXES: Final = (".csv", ".parquet", ".pq")
STAGING_PREFIX: Final = ".upload-"
"""Readers of the folder skip hidden files."""
STAGING_AGE_S: Final = 24 * 3600
"""An upload of this age was left by a process that crashed."""
WRITE_BYTES: Final = 2**20
MAX_LISTED: Final = 10_000
NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)


class StoredFile(BaseModel):
    """One file in the data folder."""

    name: str
    num_bytes: int


class DatasetFolder:
    """The folder ``KRONOS_DATA_FOLDER``."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def of(cls, settings: ApiSettings) -> Self:
        """The folder of these settings. Raises JobError DATA_NOT_ALLOWED if there is none."""
        if settings.data_folder is None:
            raise JobError(
                ErrorCode.DATA_NOT_ALLOWED,
                "this service has no data folder (KRONOS_DATA_FOLDER): set it to the folder of the workers",
            )
        return cls(settings.data_folder)

    def list(self) -> list[StoredFile]:
        """The files that jobs may name, sorted, without hidden files and links. Blocks."""
        found = []
        for parent, folders, files in os.walk(self.root):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(files):
                path = Path(parent, name)
                if name.startswith(".") or path.suffix.lower() not in SUFFIXES or path.is_symlink():
                    continue
                with suppress(OSError):  # the file was just removed
                    size = path.stat().st_size
                    found.append(StoredFile(name=path.relative_to(self.root).as_posix(), num_bytes=size))
                if len(found) == MAX_LISTED:
                    return found
        return found

    async def store(
        self,
        name: str,
        chunks: AsyncIterator[bytes],
        config: Mapping[str, Any],
        *,
        may_replace: bool,
        reading: asyncio.Semaphore,
    ) -> dict[str, Any]:
        """Write a file to a staging folder, read it as finetuning would, then move it to its place.

        Args:
            name: matches ``DATASET_NAME``.
            config: ``columns`` and ``instrument_column`` of finetuning's ``data``.
            reading: limits how many files are read at once.

        Returns:
            The report on its content, with ``name``, ``num_bytes`` and ``is_replaced``.

        Raises:
            HttpError: DATASET_EXISTS.
            JobError: TRAINING_DATA_INVALID or another code of the file's content, DISK_FULL, INTERNAL.
        """
        target = self.root / name
        if not may_replace and target.exists():
            raise _exists(name)
        # Under its own name, which becomes the name of its instrument.
        staging = self.root / f"{STAGING_PREFIX}{uuid.uuid4().hex}" / name
        try:
            await asyncio.to_thread(self._prepare, staging)
            num_bytes = await self._write(staging, chunks)
            async with reading:
                report = await read_dataset(staging, name, config)
            is_replaced = await asyncio.to_thread(_place, staging, target, name, may_replace=may_replace)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            raise JobError(
                ErrorCode.DISK_FULL,
                f"the file cannot be stored ({os.strerror(error.errno)}): free space in the data folder "
                "(KRONOS_DATA_FOLDER), or let this service write there",
            ) from error
        finally:
            await asyncio.to_thread(shutil.rmtree, staging.parent, ignore_errors=True)
        return report | {"name": name, "num_bytes": num_bytes, "is_replaced": is_replaced}

    @staticmethod
    async def _write(staging: Path, chunks: AsyncIterator[bytes]) -> int:
        num_bytes = 0
        with staging.open("xb") as file:
            held = bytearray()
            async for chunk in chunks:
                held += chunk
                num_bytes += len(chunk)
                if len(held) >= WRITE_BYTES:
                    await asyncio.to_thread(file.write, bytes(held))
                    held.clear()
            file.write(held)
        await asyncio.to_thread(sync, staging)
        return num_bytes

    def _prepare(self, staging: Path) -> None:
        """Make the staging folder, and remove those that crashes left."""
        self.root.mkdir(parents=True, exist_ok=True)
        for left in self.root.glob(f"{STAGING_PREFIX}*"):
            with suppress(OSError):  # another upload may be removing it
                if time.time() - left.stat().st_mtime > STAGING_AGE_S:
                    shutil.rmtree(left)
        staging.parent.mkdir()


def _place(staging: Path, target: Path, name: str, *, may_replace: bool) -> bool:
    """Move the file to its place in one step. Returns whether it replaced another."""
    if may_replace:
        is_replaced = target.exists()
        try:
            staging.replace(target)
        except IsADirectoryError:
            raise _exists(name) from None
        return is_replaced
    try:
        os.link(staging, target)  # unlike a rename, it fails if the name is taken
    except FileExistsError:
        raise _exists(name) from None
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK):
            raise
        # A file system without hard links: another upload may slip between the next two calls.
        if target.exists():
            raise _exists(name) from None
        staging.rename(target)
    return False


def _exists(name: str) -> HttpError:
    return HttpError(
        HttpCode.DATASET_EXISTS, f"{name} exists already: choose another name, or send replace=true", "name"
    )
