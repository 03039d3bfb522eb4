"""The data folder. Uploaded files appear in it complete, checked, and under a safe name."""

import asyncio
import errno
import os
import re
import shutil
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from api_stub.problems import HttpCode, HttpError
from api_stub.settings import ApiSettings
from api_stub.uploads.file_process import read_upload
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_model.atomic_write import NO_ROOM, sweep, sync
from kronos_model.bars.files.find import files_below
from kronos_model.bars.files.options import ReadOptions

DATASET_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\.(csv|csv\.gz|parquet|pq)")
STAGING_PREFIX: Final = ".upload-"
"""Readers of the folder skip hidden files."""
MAX_LISTED: Final = 10_000
NOT_ALLOWED: Final = (errno.EACCES, errno.EPERM, errno.EROFS)


class StoredFile(BaseModel):
    """One file in the data folder."""

    name: str
    num_bytes: int


def data_folder(settings: ApiSettings) -> Path:
    """The folder ``KRONOS_DATA_FOLDER``. Raises JobError DATA_NOT_ALLOWED if there is none."""
    if settings.data_folder is None:
        raise JobError(
            ErrorCode.DATA_NOT_ALLOWED,
            "this service has no data folder (KRONOS_DATA_FOLDER): set it to the folder of the workers",
        )
    return settings.data_folder


def stored_files(root: Path) -> list[StoredFile]:
    """The files that jobs may name, sorted, without hidden files and links. Blocks."""
    found = []
    for path in [path for path in files_below(root) if not path.is_symlink()][:MAX_LISTED]:
        with suppress(OSError):  # the file was just removed
            size = path.stat().st_size
            found.append(StoredFile(name=path.relative_to(root).as_posix(), num_bytes=size))
    return found


def dataset_path(root: Path, name: str) -> Path:
    """The file of this name that jobs may name. Raises JobError NOT_FOUND. Blocks."""
    if name not in {file.name for file in stored_files(root)}:
        raise JobError(
            HttpCode.NOT_FOUND,
            "no data set has this name; GET /v1/datasets, or an agent's list_files, has those that exist",
            "name",
        )
    return root / name


def remove(root: Path, name: str) -> None:
    """Delete a file that jobs may name. Blocks.

    Raises:
        JobError: NOT_FOUND.
        HttpError: READ_ONLY if this process may not write there.
    """
    path = dataset_path(root, name)
    try:
        path.unlink(missing_ok=True)  # another request may have deleted it meanwhile
    except OSError as error:
        raise _not_written(error, "deleted") from error


async def store(
    root: Path,
    name: str,
    chunks: AsyncIterator[bytes],
    options: ReadOptions,
    *,
    may_replace: bool,
    reading: asyncio.Semaphore,
) -> dict[str, Any]:
    """Write a file to a staging folder, read it as finetuning would, then move it to its place.

    Args:
        name: matches ``DATASET_NAME``.
        options: how to read it.
        reading: limits how many files are read at once.

    Returns:
        The report on its content, with ``name``, ``num_bytes`` and ``is_replaced``.

    Raises:
        HttpError: DATASET_EXISTS.
        JobError: TRAINING_DATA_INVALID or another code of the file's content, DISK_FULL, INTERNAL.
    """
    target = root / name
    if not may_replace and target.exists():
        raise _exists(name)
    # Under its own name, which becomes the name of its instrument.
    staging = root / f"{STAGING_PREFIX}{uuid.uuid4().hex}" / name
    try:
        await asyncio.to_thread(_prepare, staging)
        with staging.open("xb") as file:
            async for chunk in chunks:
                await asyncio.to_thread(file.write, chunk)
            num_bytes = file.tell()
        await asyncio.to_thread(sync, staging)
        async with reading:
            report = await read_upload(staging, name, options, ErrorCode.TRAINING_DATA_INVALID)
        is_replaced = await asyncio.to_thread(_place, staging, target, may_replace=may_replace)
    except OSError as error:
        raise _not_written(error, "stored") from error
    finally:
        await asyncio.to_thread(shutil.rmtree, staging.parent, ignore_errors=True)
    return report | {"name": name, "num_bytes": num_bytes, "is_replaced": is_replaced}


def _prepare(staging: Path) -> None:
    """Make the staging folder, and remove those that crashes left."""
    staging.parent.mkdir(parents=True)
    sweep(staging.parent.parent, f"{STAGING_PREFIX}*")


def _place(staging: Path, target: Path, *, may_replace: bool) -> bool:
    """Move the file to its place in one step. Returns whether it replaced another."""
    is_replaced = may_replace and target.exists()
    try:
        if may_replace:
            staging.replace(target)
        else:
            _move_to_free_name(staging, target)
    except (FileExistsError, IsADirectoryError):
        raise _exists(target.name) from None
    return is_replaced


def _move_to_free_name(staging: Path, target: Path) -> None:
    try:
        os.link(staging, target)  # unlike a rename, it fails if the name is taken
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK):
            raise
        # A file system without hard links: another upload may slip between the next two calls.
        if target.exists():
            raise FileExistsError from None
        staging.rename(target)


def _not_written(error: OSError, what: str) -> Exception:
    if error.errno not in NO_ROOM:
        return error
    text = f"the file cannot be {what} ({os.strerror(error.errno)}):"
    if error.errno in NOT_ALLOWED:
        return HttpError(HttpCode.READ_ONLY, f"{text} let this service write in KRONOS_DATA_FOLDER")
    return JobError(ErrorCode.DISK_FULL, f"{text} free space in KRONOS_DATA_FOLDER")


def _exists(name: str) -> HttpError:
    return HttpError(
        HttpCode.DATASET_EXISTS, f"{name} exists already: choose another name, or send replace=true", "name"
    )
