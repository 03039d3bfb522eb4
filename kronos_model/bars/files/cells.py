"""The cells of a file's columns, not yet converted to numbers and times."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from kronos_model.text import printable

MAX_SHOWN_CHARS: Final = 300


@dataclass(frozen=True)
class Header:
    """The meaning of a file's columns.

    Attributes:
        titles: of all columns, without spaces and angle brackets around them.
        places: the positions of the used columns, by our names.
        num_rows: rows before the first bar.
    """

    titles: Sequence[str]
    places: Mapping[str, int]
    num_rows: int = 1

    @property
    def used_titles(self) -> dict[str, str]:
        return {name: self.titles[place] for name, place in self.places.items()}


ReadHeader = Callable[[Sequence[Sequence[str]]], Header]
"""Reads the header in the first rows of a file."""


@dataclass(frozen=True, eq=False)
class Cells:
    """The used columns of a file, in the order of its rows.

    Attributes:
        titles: the file's title of each column, by our names.
        columns: pyarrow arrays of T cells, by our names. Texts have no spaces around them.
        unit: the unit of row numbers in errors: lines of a CSV file from 1, rows of a Parquet file from 0.
        count: returns the line or row of each, (T,).
        overlong: the number of cells of each row with more cells than the header. Its own cells are empty.
        separator: what stands between the cells of a CSV file.
    """

    titles: Mapping[str, str]
    columns: Mapping[str, Any]
    unit: Literal["line", "row"]
    count: Callable[[], NDArray[np.int64]]
    overlong: Mapping[int, int] = field(default_factory=dict)
    separator: str | None = None

    @cached_property
    def numbers(self) -> NDArray[np.int64]:
        """The line or row of each row, counted only if needed."""
        return self.count()


def shown(text: str) -> str:
    """The start of a text from a file, safe to print on a terminal."""
    return printable(text[:MAX_SHOWN_CHARS])
