"""The meaning of a file's columns, by their titles. Case, and spaces around a title, do not count."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from kronos_model.bars.columns import COLUMNS, PRICE_COLUMNS, TIME_COLUMNS
from kronos_model.bars.files.cells import shown
from kronos_model.errors import CandleFileError

TIMES: Final = "timestamps"
TIME_OF_DAY: Final = "time"
"""The column of times of day, if ``TIMES`` has only dates."""
INSTRUMENT: Final = "instrument"

PANDAS_INDEX: Final = "__index_level_0__"
"""Pandas' title for an unnamed index in Parquet."""


def find_columns(path: Path, header: Sequence[str], names: Mapping[str, str]) -> dict[str, int]:
    """The positions of the columns, by our names.

    The column of times is the first of ``TIME_COLUMNS`` that the file has; if that is ``date``, a column
    ``time`` belongs to it.

    Args:
        header: the file's titles, without spaces around them.
        names: titles of columns in the file, if not our names. ``INSTRUMENT`` is found only by such a title.

    Raises:
        CandleFileError: a column is missing, or several differ in case only. ``field`` is our name for it.
    """
    places: dict[str, int] = {}
    for name in (TIMES, *COLUMNS, INSTRUMENT):
        if name in names:
            found = _find(path, header, names[name].strip(), name, is_exact_enough=True)
            if found is None:
                raise CandleFileError(
                    f"{path} has no column {names[name]!r} for {name}; it has {_listed(header)}", field=name
                )
            places[name] = found
        elif name == TIMES:
            places |= _find_times(path, header)
        elif name != INSTRUMENT and (found := _find(path, header, name, name)) is not None:
            places[name] = found
    if missing := [name for name in PRICE_COLUMNS if name not in places]:
        text = f"{path} has no column {' and no column '.join(missing)}; it has {_listed(header)}"
        raise CandleFileError(f"{text}: rename the columns that hold them", field=missing[0])
    return places


def _find_times(path: Path, header: Sequence[str]) -> dict[str, int]:
    places = {name: _find(path, header, name, TIMES) for name in TIME_COLUMNS}
    found = {name: place for name, place in places.items() if place is not None}
    if PANDAS_INDEX in header:
        found.setdefault(PANDAS_INDEX, header.index(PANDAS_INDEX))
    if not found:
        text = f"{path} has no column with the times; it has {_listed(header)}"
        titles = f"{', '.join(TIME_COLUMNS[:-1])} or {TIME_COLUMNS[-1]}"
        raise CandleFileError(f"{text}: call the column of times {titles}", field=TIMES)
    first, place = next(iter(found.items()))
    if first == "date" and "time" in found:
        return {TIMES: place, TIME_OF_DAY: found["time"]}
    return {TIMES: place}


def _find(
    path: Path, header: Sequence[str], title: str, name: str, *, is_exact_enough: bool = False
) -> int | None:
    """The first column of that title, else of that title in another case."""
    if is_exact_enough and title in header:
        return header.index(title)
    spelt = list(dict.fromkeys(each for each in header if each.lower() == title.lower()))
    if len(spelt) > 1:
        text = f"{path} has the columns {' and '.join(map(shown, spelt))}: keep one of them"
        raise CandleFileError(text, field=name)
    return header.index(spelt[0]) if spelt else None


def _listed(header: Sequence[str]) -> str:
    return shown(", ".join(header))
