"""Runs the process that reads an uploaded file, and explains its end if it gave no answer."""

import asyncio
import logging
import signal
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_model.bars.files.options import ReadOptions
from kronos_model.processes.children import module_command
from kronos_model.processes.json_child import ChildEnded, JsonChild

log = logging.getLogger(__name__)

COMMAND: Final = module_command("api_stub.uploads.file_child")
TIMEOUT_S: Final = 180.0
MAX_MEMORY_BYTES: Final = 5 * 2**29
"""Address space of one process. A CSV file of 256 MiB takes 2.2 GiB, half of it in use."""
MAX_LINE_CHARS: Final = 2**22
MAX_STDERR_CHARS: Final = 8192
ENDED_BY_LIMITS: Final = (-signal.SIGKILL, -signal.SIGXCPU)
"""Exit statuses if the container's memory or the process's CPU time is used up."""


async def read_upload(
    path: Path, name: str, options: ReadOptions, code: ErrorCode, bars: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Read a file. Return a report on it, as finetuning would read it, or its last bars if ``bars`` is given.

    Args:
        name: the file, as its sender calls it.
        code: of the error if it cannot be read.
        bars: ``max_bars``, ``instrument`` and ``is_settled``; see ``file_child``.

    Raises:
        JobError: ``code``; INTERNAL if the process fails.
    """
    if not path.stat().st_size:
        raise JobError(code, f"{name} is empty", "body")
    child = JsonChild("upload", COMMAND, max_line_chars=MAX_LINE_CHARS)
    try:
        message = {"path": str(path.absolute()), "options": asdict(options), "bars": bars}
        child.send(message | {"max_memory_bytes": MAX_MEMORY_BYTES})
        answer = await asyncio.to_thread(child.next_event, TIMEOUT_S)
        if answer is None:
            raise _failure(child, name, code, None)
    except ChildEnded as ended:
        raise _failure(child, name, code, ended) from None
    finally:
        child.kill()  # first, because a thread still waits for the child if this task is cancelled
        await asyncio.to_thread(child.stop)
    if answer["event"] == "content":
        content = dict(answer["content"])
        for messages in ("bad_rows", "warnings", "explanation"):
            if messages in content:
                texts = content[messages]
                content[messages] = [text.replace(str(path.absolute()), name) for text in texts]
        return content
    _, reason, field, details = answer["args"]
    raise JobError(code, reason.replace(f"…/{path.name}", name), field, details)


def _failure(child: JsonChild, name: str, code: ErrorCode, ended: ChildEnded | None) -> JobError:
    errors = "\n".join(child.tail(MAX_STDERR_CHARS))[-MAX_STDERR_CHARS:]
    reason = ended or "the process gave no answer in time"
    # As one line of ASCII, because it may contain parts of the file.
    log.error("%s reading the uploaded file %s: %s", reason, name, ascii(errors))
    # C++ aborts if it gets no memory. Only the end of stderr shows it.
    is_limit = ended is None or ended.exit_status in ENDED_BY_LIMITS
    if is_limit or "MemoryError" in errors or "bad_alloc" in errors:
        return JobError(
            code, f"{name} needs more memory or time to read than one file may use; split it", "body"
        )
    return JobError(
        ErrorCode.INTERNAL, f"the process that reads {name} failed; see this service's log, and report it"
    )
