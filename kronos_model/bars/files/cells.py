"""The cells of a file's columns, not yet converted to numbers and times."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from kronos_model.text import printable

MAX_SHOWN_CHARS: Final = 300

FindColumns = Callable[[Sequence[str]], Mapping[str, int]]
"""Maps a file's header to the position of each used column, by our names."""


@dataclass(frozen=True, eq=False)
class Cells:
    """The used columns of a file, in the order of its rows.

    Attributes:
        titles: the file's title of each column, by our names.
        columns: pyarrow arrays of T cells, by our names. Texts have no spaces around them.
        unit: the unit of row numbers in errors: lines of a CSV file from 1, rows of a Parquet file from 0.
        numbers: the line or row of each, (T,); None if they were not counted.
        overlong: line and number of cells of each row with more cells than the header; these rows are left
            out.
    """

    titles: Mapping[str, str]
    columns: Mapping[str, Any]
    unit: Literal["line", "row"]
    numbers: NDArray[np.int64] | None = None
    overlong: tuple[tuple[int, int], ...] = ()


def shown(text: str) -> str:
    """The start of a text from a file, safe to print on a terminal."""
    return printable(text[:MAX_SHOWN_CHARS])
