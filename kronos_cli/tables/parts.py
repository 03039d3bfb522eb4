"""Parts that the tables share."""

from collections.abc import Collection
from typing import Final

from rich import box
from rich.table import Table

UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"))


def simple_table(
    *columns: str, names: Collection[str] = (), texts: Collection[str] = (), show_header: bool = True
) -> Table:
    """An empty table.

    Args:
        columns: Titles from left to right. A column holds numbers unless it is in one of the next two.
        names: Columns of names. They are folded and never cut, since long names differ at the end.
        texts: Columns of words. They stay on one line.
        show_header: Whether the titles are printed.
    """
    table = Table(box=box.SIMPLE, show_header=show_header, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        if column in names:
            table.add_column(column, overflow="fold")
        else:
            table.add_column(column, no_wrap=True, justify="left" if column in texts else "right")
    return table


def duration(seconds: float) -> str:
    """Text such as "12 s", "5 min", "3 h" or "2 d"."""
    for size, unit in UNITS:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"
