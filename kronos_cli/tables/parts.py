"""What the tables for the terminal share."""

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
        columns: titles, from left to right; columns of numbers, if not one of the following.
        names: columns of names, which are folded and never cut, as the end of a long name is what differs.
        texts: columns of words, which stay on one line.
        show_header: whether the titles are printed.
    """
    table = Table(box=box.SIMPLE, show_header=show_header, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        if column in names:
            table.add_column(column, overflow="fold")
        else:
            table.add_column(column, no_wrap=True, justify="left" if column in texts else "right")
    return table


def duration(seconds: float) -> str:
    """As "12 s", "5 min", "3 h" or "2 d"."""
    for size, unit in UNITS:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"
