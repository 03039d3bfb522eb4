"""The process that reads an uploaded file: its answer, and what its end says where there is none."""

import asyncio
import json
import logging
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from kronos_client.contract.errors import ErrorCode, JobError

log = logging.getLogger(__name__)

# -P: a package of that name in the working folder is not this one.
COMMAND: Final = (sys.executable, "-P", "-m", "api_stub.uploads.dataset_check")
ROOT: Final = Path(__file__).resolve().parents[2]
TIMEOUT_S: Final = 180.0
MAX_MEMORY_BYTES: Final = 5 * 2**29
"""Of one process, with what its libraries map: a CSV file of 256 MiB takes 2.2 GiB, half of it in use."""
MAX_STDERR_BYTES: Final = 8192
"""The last of it, which say why."""
ENDED_BY_LIMITS: Final = (-signal.SIGKILL, -signal.SIGXCPU)
"""By the kernel: the container's memory, or the process's own time, was used up."""


async def read_dataset(path: Path, name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """What finetuning would read in the file at ``path``, which its sender calls ``name``.

    Raises JobError: TRAINING_DATA_INVALID and its like; INTERNAL where the process failed otherwise.
    """
    given = {field: value for field, value in config.items() if value}
    asked = {"path": str(path.absolute()), "config": given, "max_memory_bytes": MAX_MEMORY_BYTES}
    process = await asyncio.create_subprocess_exec(
        *COMMAND, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    output, errors, is_late = b"", b"", False
    try:
        async with asyncio.timeout(TIMEOUT_S):
            output, errors = await _talk(process, json.dumps(asked).encode())
    except TimeoutError:
        is_late = True
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    try:
        answer: dict[str, Any] = json.loads(output)
    except ValueError:
        # As one line: what a file holds may be in it.
        reason = ascii(errors.decode("utf-8", "replace"))
        status = "no end in time" if is_late else f"status {process.returncode}"
        log.error("reading the uploaded file %s ended with %s: %s", name, status, reason)
        raise _failure(name, process.returncode, errors, is_late=is_late) from None
    if "error" in answer:
        error = answer["error"]
        message = str(error["message"]).replace(f"…/{name}", name)
        raise JobError(error["code"], message, _field(error.get("field") or ""), error.get("details"))
    return answer


async def _talk(process: Process, question: bytes) -> tuple[bytes, bytes]:
    """The process's whole answer, and the last of what it complained of."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    with suppress(BrokenPipeError, ConnectionResetError):  # how it ended says why
        process.stdin.write(question)
        await process.stdin.drain()
    process.stdin.close()
    output, errors, _ = await asyncio.gather(process.stdout.read(), _tail(process.stderr), process.wait())
    return output, errors


async def _tail(stream: asyncio.StreamReader) -> bytes:
    kept = b""
    while chunk := await stream.read(2**16):
        kept = (kept + chunk)[-MAX_STDERR_BYTES:]
    return kept


def _failure(name: str, status: int | None, errors: bytes, *, is_late: bool) -> JobError:
    # C++ ends the process where it gets no memory; only its last words tell.
    if is_late or status in ENDED_BY_LIMITS or b"MemoryError" in errors or b"bad_alloc" in errors:
        return JobError(
            ErrorCode.TRAINING_DATA_INVALID,
            f"{name} cannot be read with the memory and time that one file may take; split it",
            "body",
        )
    return JobError(
        ErrorCode.INTERNAL, f"the process that reads {name} failed; see this service's log, and report it"
    )


def _field(field: str) -> str:
    """What an upload calls a field of finetuning's config."""
    if field.startswith("data.columns"):
        return "column"
    return "instrument_column" if field == "data.instrument_column" else "body"
