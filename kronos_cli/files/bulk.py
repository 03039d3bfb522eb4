"""The job of one file: its candles, and the fingerprint of candles and options."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pandas as pd

from kronos_cli.files.inputs import Source, numbered
from kronos_cli.wording import file_error
from kronos_client.core.forecast_request import ForecastOptions
from kronos_model.bars.files.lookback import CandleFile, Lookback
from kronos_model.bars.files.options import ReadOptions
from kronos_model.errors import CandleFileError

NO_PART_OF_THE_FORECAST: Final = ("device", "allow_fallback", "priority", "deadline_s")
"""Options on where and when it is computed."""


@dataclass(frozen=True, eq=False)
class ForecastWork:
    """A file with its forecast's name, its candles, and the fingerprint of candles and options."""

    name: str
    source: Source
    lookback: Lookback
    fingerprint: str

    @property
    def file(self) -> Path:
        return self.source.file

    @property
    def candles(self) -> pd.DataFrame:
        return self.lookback.candles


class FileReader:
    """Reads candle files. The last file is kept, since several instruments may be in it."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._last: CandleFile | None = None

    def open(self, path: Path) -> CandleFile:
        """The whole file. Raises CandleFileError."""
        if self._last is None or self._last.path != path:
            self._last = None  # frees its memory first
            self._last = CandleFile(path, self._options)
        return self._last

    def sources(self, files: Mapping[str, Path]) -> dict[str, Source]:
        """Each forecast's source, by its name. A file with an instrument column has one for each."""
        if self._options.id_column is None:
            return {name: Source(file) for name, file in files.items()}
        found: dict[str, Source] = {}
        for name, file in files.items():
            try:
                instruments = self.open(file).instruments
            except CandleFileError:  # reported when its turn comes
                found[name] = Source(file)
                continue
            names = numbered(f"{name}/{_safe(instrument)}" for instrument in instruments)
            found |= {each: Source(file, one) for each, one in zip(names, instruments, strict=True)}
        return found


def _safe(instrument: str) -> str:
    """An instrument's name as the name of a file."""
    return re.sub(r"^[.]|[^\w .,=^@+-]", "_", instrument) or "_"


def read_work(
    name: str, source: Source, reader: FileReader, max_bars: int, options: ForecastOptions
) -> ForecastWork:
    """Read the last candles of an instrument. Raises JobError if they cannot be used."""
    try:
        lookback = reader.open(source.file).last(max_bars, source.instrument)
    except CandleFileError as error:
        # The message keeps the path, since the file is the user's own.
        raise file_error(error) from None
    candles = lookback.candles
    covered = {option: value for option, value in options.items() if option not in NO_PART_OF_THE_FORECAST}
    digest = hashlib.sha256(json.dumps(covered, sort_keys=True).encode())
    for title in candles:
        column = candles[title]
        is_text = title == "timestamps"
        digest.update(f"\n{title}\n".encode())
        digest.update("\n".join(column).encode() if is_text else column.to_numpy("<f8").tobytes())
    return ForecastWork(name, source, lookback, digest.hexdigest())
