"""The cells of a file's columns, before anything is read from them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from kronos_model.text import printable

MAX_SHOWN_CHARS: Final = 300

FindColumns = Callable[[Sequence[str]], Mapping[str, int]]
"""From a file's header to the place of each column that is used, by our names."""


@dataclass(frozen=True, eq=False)
class Cells:
    """The columns of a file that are used, in the order of its rows.

    Attributes:
        titles: what the file calls each column, by our names.
        columns: pyarrow arrays of T cells, by our names. Texts have no spaces around them.
        unit: what errors count rows by: lines of a CSV file from 1, rows of a Parquet file from 0.
        numbers: the line or row of each, (T,); None if they were not counted.
        overlong: line and number of cells of each row that is left out since it has more cells than the
            header.
    """

    titles: Mapping[str, str]
    columns: Mapping[str, Any]
    unit: Literal["line", "row"]
    numbers: NDArray[np.int64] | None = None
    overlong: tuple[tuple[int, int], ...] = ()


def shown(text: str) -> str:
    """The start of a text from a file, without what could steer a terminal."""
    return printable(text[:MAX_SHOWN_CHARS])
