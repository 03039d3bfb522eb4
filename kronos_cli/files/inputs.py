"""The candle files that a command names, and the job of each: its candles, and a fingerprint of them."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Final

import pandas as pd

from kronos_cli.files.errors import file_error
from kronos_client.core.options import ForecastOptions
from kronos_model.bars.files.find import SUFFIXES, distinct_names, files_below, without_suffix
from kronos_model.bars.files.lookback import CandleFile, Lookback
from kronos_model.bars.files.options import ReadOptions
from kronos_model.bars.files.table import names_instruments
from kronos_model.errors import CandleFileError, InputError

NO_PART_OF_THE_FORECAST: Final = ("device", "allow_fallback", "priority", "deadline_s")
"""Options on where and when it is computed."""


@dataclass(frozen=True)
class Source:
    """The file of a forecast, and the instrument if it has several."""

    file: Path
    instrument: str | None = None


def find_inputs(paths: Sequence[str], output: Path) -> dict[str, Path]:
    """List each file once, in the order of ``paths`` and sorted within a folder.

    Args:
        paths: Files; folders, for all CSV and Parquet files below them without hidden ones; and patterns such
            as ``candles/*_1d.csv``, for shells that do not expand them.
        output: The file or folder where forecasts go. Files in it are left out.

    Returns:
        Each file by its forecast's name: the path without suffix below the given folder. Names that would be
        the same get the suffix too, or the folders that differ.

    Raises:
        InputError: A path does not exist, has no files or lies in ``output``.
    """
    names: dict[Path, tuple[str, Path]] = {}  # by resolved path
    for text in paths:
        found = _files_of(text)
        if not found:
            reason = f"has no files that end in {', '.join(SUFFIXES)}"
            raise InputError(f"{text} {reason if Path(text).is_dir() else 'does not exist'}")
        for name, file in found:
            resolved = file.resolve()
            if not resolved.is_relative_to(output.resolve()):
                names.setdefault(resolved, (name, file))
            elif file == Path(text):
                raise InputError(f"{file} lies where the forecasts go: give another --output")
    if not names:
        raise InputError(f"all files lie in {output}, where the forecasts go: give another --output")
    alike = Counter(name.casefold() for name, _ in names.values())  # some file systems ignore case
    longer = distinct_names(list(names))
    own = [
        other if alike[name.casefold()] > 1 else name
        for other, (name, _) in zip(longer, names.values(), strict=True)
    ]
    return dict(zip(numbered(own), (file for _, file in names.values()), strict=True))


def numbered(names: Iterable[str]) -> list[str]:
    """The names, with a number at the end of those that are the same in another case."""
    found: dict[str, str] = {}
    for name in names:
        further = (f"{name}-{number}" for number in count(2))
        free = next(other for other in chain([name], further) if other.casefold() not in found)
        found[free.casefold()] = free
    return list(found.values())


def _files_of(text: str) -> list[tuple[str, Path]]:
    path = Path(text)
    if path.is_dir():
        return [(without_suffix(file.relative_to(path)).as_posix(), file) for file in files_below(path)]
    if path.exists():
        return [(without_suffix(path).name, path)]
    if not any(sign in text for sign in "*?["):
        return []
    anchor = Path(path.anchor)
    found = sorted(anchor.glob(str(path.relative_to(anchor))))
    return [(without_suffix(file).name, file) for file in found if file.is_file()]


@dataclass(frozen=True, eq=False)
class ForecastWork:
    """A file with its forecast's name, its candles, and the fingerprint of candles and options.

    Attributes:
        timezone: of the options, else the one that the file names.
    """

    name: str
    source: Source
    lookback: Lookback
    timezone: str | None
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
        """Each forecast's source, by its name. A file with several instruments has one for each."""
        found: dict[str, Source] = {}
        for name, file in files.items():
            try:
                # Other files are read once, when their turn comes.
                may_name = (
                    len(files) == 1 or self._options.id_column or names_instruments(file, self._options)
                )
                instruments = self.open(file).instruments if may_name else ("",)
            except CandleFileError:  # reported when its turn comes
                instruments = ("",)
            if instruments == ("",):
                found[name] = Source(file)
                continue
            names = numbered(f"{name}/{_safe(instrument)}" for instrument in instruments)
            found |= {
                unique: Source(file, instrument)
                for unique, instrument in zip(names, instruments, strict=True)
            }
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
    timezone = options.get("timezone") or lookback.timezone
    given = {**options, "timezone": timezone}
    covered = {option: value for option, value in given.items() if option not in NO_PART_OF_THE_FORECAST}
    digest = hashlib.sha256(json.dumps(covered, sort_keys=True).encode())
    for title in candles:
        column = candles[title]
        is_text = title == "timestamps"
        digest.update(f"\n{title}\n".encode())
        digest.update("\n".join(column).encode() if is_text else column.to_numpy("<f8").tobytes())
    return ForecastWork(name, source, lookback, timezone, digest.hexdigest())
