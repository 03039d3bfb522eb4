"""``python -m api_stub.uploads.dataset_check``: looks at one uploaded file as finetuning would.

In a process of its own, since what comes from outside may be built to take all memory, all time, or the
process with it. Its standard input is the question as JSON, its standard output the answer.
"""

import json
import resource
import sys
from pathlib import Path
from typing import Any, Final

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_model.errors import KronosError

MAX_CPU_S: Final = 120


def check(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    """What the file holds; raises KronosError where finetuning could not read it."""
    from kronos_model.finetuning.candles import read_training_candles
    from kronos_model.finetuning.config import parse_config

    data = parse_config({"data": {"path": str(path), **config}}).data
    _, report = read_training_candles(data)
    return report.short()


def main() -> None:
    """Answer one question."""
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    question = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_AS, (question["max_memory_bytes"],) * 2)
    try:
        answer = check(Path(question["path"]), question["config"])
    except KronosError as error:
        code, message, field, details = JobError.from_kronos(error).args
        answer = {"error": {"code": code, "message": message, "field": field, "details": details}}
    except MemoryError:
        message = "the file takes more memory than one file may; split it"
        answer = {"error": {"code": ErrorCode.TRAINING_DATA_INVALID, "message": message}}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
