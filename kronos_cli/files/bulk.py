"""The job of one file: its candles, and the fingerprint of candles and options."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pandas as pd

from kronos_client.contract.errors import JobError
from kronos_client.core.forecast_request import ForecastOptions
from kronos_model.bars.files.lookback import read_candles
from kronos_model.errors import KronosError

NO_PART_OF_THE_FORECAST: Final = ("device", "allow_fallback", "priority", "deadline_s")
"""Options on where and when it is computed."""


@dataclass(frozen=True, eq=False)
class ForecastWork:
    """A file with its forecast's name, its candles, and the fingerprint of candles and options."""

    name: str
    file: Path
    candles: pd.DataFrame
    fingerprint: str


def read_work(name: str, file: Path, lookback: int, options: ForecastOptions) -> ForecastWork:
    """Read the last ``lookback`` candles of a file. Raises JobError if they cannot be used."""
    try:
        candles = read_candles(file, lookback)
    except KronosError as error:
        # The message keeps the path, since the file is the user's own.
        raise JobError(error.code, error.message, error.field, error.details) from None
    covered = {option: value for option, value in options.items() if option not in NO_PART_OF_THE_FORECAST}
    digest = hashlib.sha256(json.dumps(covered, sort_keys=True).encode())
    for title in candles:
        column = candles[title]
        is_text = title == "timestamps"
        digest.update(f"\n{title}\n".encode())
        digest.update("\n".join(column).encode() if is_text else column.to_numpy("<f8").tobytes())
    return ForecastWork(name, file, candles, digest.hexdigest())
