"""Errors about files and their bars, with the command's options."""

import re
from typing import Final

from kronos_cli.wording import in_own_words
from kronos_client.contract.errors import JobError
from kronos_model.bars.files.lookback import Lookback
from kronos_model.bars.files.options import Spelling
from kronos_model.errors import CandleFileError

_SPELLING: Final = Spelling(
    ffill="--missing ffill",
    drop="--missing drop",
    drop_bad_rows="--drop-bad-rows",
    column="--columns {}=TITLE",
    fields={
        "columns": "--columns",
        "date_format": "--date-format",
        "decimal": "--decimal",
        "instrument": "--id-column",
    },
)


def file_error(error: CandleFileError) -> JobError:
    """An error about a file, with the option that helps."""
    return JobError(error.code, _SPELLING.with_remedy(error), error.field, error.details)


def job_error(error: JobError, lookback: Lookback) -> JobError:
    """An error about a job of these bars, with options in place of fields, and the file's own rows."""
    message, row = in_own_words(error.message), error.details.get("row")
    if isinstance(row, int) and row < len(lookback.numbers):
        message = re.sub(rf"\brow {row}\b", f"{lookback.unit} {lookback.numbers[row]}", message)
    return JobError(error.code, message, error.field, error.details)
