"""``python -m api_stub.uploads.file_child`` reads one uploaded file.

It is a separate process, because a hostile file may use up memory and time or crash its reader. The message
holds ``path``, ``options`` (``ReadOptions``), ``max_memory_bytes``, and ``bars``: null for a report, or the
arguments of ``CandleFile.last`` and ``is_settled``, whether missing bars are filled or left out here. The one
event is ``content`` or ``error``.
"""

import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_model.bars.files.options import MAPPED, Spelling
from kronos_model.errors import KronosError
from kronos_model.processes.json_child import JsonParent

MAX_CPU_S: Final = 120
SPELLING: Final = Spelling(
    ffill="missing=ffill",
    drop="missing=drop",
    drop_bad_rows="drop_bad_rows=true",
    column="column={}:TITLE",
    fields={
        "columns": "column",
        "instrument": "id_column",
        "date_format": "date_format",
        "decimal": "decimal",
    },
)


def read(path: Path, options: Mapping[str, Any], bars: Mapping[str, Any] | None) -> dict[str, Any]:
    """The last bars of an instrument, or a report on the whole file as finetuning reads it.

    Raises:
        KronosError: The file cannot be read.
    """
    from kronos_model.bars.files.instruments import read_instruments
    from kronos_model.bars.files.lookback import CandleFile
    from kronos_model.bars.files.options import ReadOptions

    given = ReadOptions(**options)
    if bars is None:
        return read_instruments([str(path)], given)[1].short()
    file = CandleFile(path, given)
    asked = dict(bars)
    is_settled = asked.pop("is_settled", False)
    found = file.last(**asked)
    candles, warnings = found.candles, list(found.notes)
    if is_settled and given.missing != "error":
        candles, settled = found.settled(given.missing)
        warnings += settled
    columns = {str(name): candles[name].tolist() for name in candles}
    return {
        "series": {"id": found.name, "timezone": found.timezone} | columns,
        "warnings": warnings,
        "instruments": [] if file.instruments == ("",) else list(file.instruments),
        "explanation": file.explanation(),
        "dropped": dict(found.dropped),
        "bad_rows": list(found.bad_rows),
    }


def in_request(error: KronosError) -> JobError:
    """The error with the request's field at fault, and with the parameter that helps."""
    error.message = SPELLING.with_remedy(error)
    code, message, field, details = JobError.from_kronos(error).args
    if details.keys() & {"line", "row"}:
        field = "body"
    field = "column" if field in MAPPED else SPELLING.fields.get(field, "body")
    return JobError(code, message, field, details)


def main() -> None:
    """Read the file that the one message names."""
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    parent = JsonParent()
    message = parent.next_message()
    resource.setrlimit(resource.RLIMIT_AS, (message["max_memory_bytes"],) * 2)
    try:
        content = read(Path(message["path"]), message["options"], message["bars"])
        parent.send("content", content=content)
    except KronosError as error:
        parent.send("error", args=in_request(error).args)
    except MemoryError:
        reason = "the file needs more memory than one file may use; split it"
        parent.send("error", args=(ErrorCode.INVALID_INPUT, reason, None, {}))


if __name__ == "__main__":
    main()
