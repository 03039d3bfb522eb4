"""``python -m api_stub.uploads.dataset_check`` reads one uploaded file as finetuning would.

It is a separate process, because a hostile file may use up memory and time or crash its reader. The message
holds ``path``, ``config`` and ``max_memory_bytes``. The one event is ``report`` or ``error``.
"""

import resource
from pathlib import Path
from typing import Any, Final

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_model.errors import KronosError
from kronos_model.processes.json_child import JsonParent

MAX_CPU_S: Final = 120


def check(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Report on the file's content. Raises KronosError if finetuning could not read it."""
    from kronos_model.finetuning.config import parse_config
    from kronos_model.finetuning.data import read_training_candles

    data = parse_config({"data": {"path": str(path), **config}}).data
    _, report = read_training_candles(data)
    return report.short()


def main() -> None:
    """Check the file that the one message names."""
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    parent = JsonParent()
    message = parent.next_message()
    resource.setrlimit(resource.RLIMIT_AS, (message["max_memory_bytes"],) * 2)
    try:
        parent.send("report", report=check(Path(message["path"]), message["config"]))
    except KronosError as error:
        parent.send("error", args=JobError.from_kronos(error).args)
    except MemoryError:
        reason = "the file needs more memory than one file may use; split it"
        parent.send("error", args=(ErrorCode.TRAINING_DATA_INVALID, reason, None, {}))


if __name__ == "__main__":
    main()
