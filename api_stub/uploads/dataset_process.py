"""Runs the process that reads an uploaded file, and explains its end if it gave no answer."""

import asyncio
import logging
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_model.processes.environment import module_command
from kronos_model.processes.json_child import ChildEnded, JsonChild

log = logging.getLogger(__name__)

COMMAND: Final = module_command("api_stub.uploads.dataset_check")
TIMEOUT_S: Final = 180.0
MAX_MEMORY_BYTES: Final = 5 * 2**29
"""Address space of one process. A CSV file of 256 MiB takes 2.2 GiB, half of it in use."""
MAX_LINE_CHARS: Final = 2**22
MAX_STDERR_CHARS: Final = 8192
ENDED_BY_LIMITS: Final = (-signal.SIGKILL, -signal.SIGXCPU)
"""Exit statuses if the container's memory or the process's CPU time is used up."""


async def read_dataset(path: Path, name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Report on the file at ``path`` as finetuning would read it. Its sender calls it ``name``.

    Raises:
        JobError: TRAINING_DATA_INVALID or another code of the content; INTERNAL if the process fails.
    """
    given = {field: value for field, value in config.items() if value}
    child = JsonChild("dataset", COMMAND, max_line_chars=MAX_LINE_CHARS)
    try:
        child.send({"path": str(path.absolute()), "config": given, "max_memory_bytes": MAX_MEMORY_BYTES})
        answer = await asyncio.to_thread(child.next_event, TIMEOUT_S)
        if answer is None:
            raise _failure(child, name, None)
    except ChildEnded as ended:
        raise _failure(child, name, ended) from None
    finally:
        child.kill()  # first, because a thread still waits for the child if this task is cancelled
        await asyncio.to_thread(child.stop)
    if answer["event"] == "report":
        return dict(answer["report"])
    code, message, field, details = answer["args"]
    field = str(field).removeprefix("data.").partition(".")[0]  # of finetuning's config
    field = {"columns": "column", "instrument_column": "instrument_column"}.get(field, "body")
    raise JobError(code, message.replace(f"…/{name}", name), field, details)


def _failure(child: JsonChild, name: str, ended: ChildEnded | None) -> JobError:
    errors = "\n".join(child.tail(MAX_STDERR_CHARS))[-MAX_STDERR_CHARS:]
    reason = ended or "the dataset process gave no answer in time"
    # As one line of ASCII, because it may contain parts of the file.
    log.error("%s reading the uploaded file %s: %s", reason, name, ascii(errors))
    # C++ aborts if it gets no memory. Only the end of stderr shows it.
    is_limit = ended is None or ended.exit_status in ENDED_BY_LIMITS
    if is_limit or "MemoryError" in errors or "bad_alloc" in errors:
        return JobError(
            ErrorCode.TRAINING_DATA_INVALID,
            f"{name} needs more memory or time to read than one file may use; split it",
            "body",
        )
    return JobError(
        ErrorCode.INTERNAL, f"the process that reads {name} failed; see this service's log, and report it"
    )
