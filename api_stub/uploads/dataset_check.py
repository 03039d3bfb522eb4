"""``python -m api_stub.uploads.dataset_check``: read one uploaded file as finetuning would.

In a process of its own, since a hostile file may take all memory, all time, or the process with it. The
message holds ``path``, ``config`` and ``max_memory_bytes``; the one event is ``report`` or ``error``.
"""

import resource
from pathlib import Path
from typing import Any, Final

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_model.errors import KronosError
from kronos_model.processes.json_child import JsonParent

MAX_CPU_S: Final = 120


def check(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    """What the file holds; raises KronosError if finetuning could not read it."""
    from kronos_model.finetuning.candles import read_training_candles
    from kronos_model.finetuning.config import parse_config

    data = parse_config({"data": {"path": str(path), **config}}).data
    _, report = read_training_candles(data)
    return report.short()


def main() -> None:
    """Answer one question."""
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    parent = JsonParent()
    question = parent.next_message()
    resource.setrlimit(resource.RLIMIT_AS, (question["max_memory_bytes"],) * 2)
    try:
        parent.send("report", report=check(Path(question["path"]), question["config"]))
    except KronosError as error:
        code, message, field, details = JobError.from_kronos(error).args
        parent.send("error", code=code, message=message, field=field, details=details)
    except MemoryError:
        message = "the file takes more memory than one file may; split it"
        parent.send("error", code=ErrorCode.TRAINING_DATA_INVALID, message=message, field=None, details=None)


if __name__ == "__main__":
    main()
