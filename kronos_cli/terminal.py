"""Tables, progress and JSON on the terminal, as several commands print them."""

import json
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any, Final

import click
from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

MAX_CHARS: Final = 1000
"""Of a table's line."""
UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"))


def show(data: Any, view: RenderableType, *, as_json: bool) -> None:
    """Print the data as JSON, or their view."""
    if as_json:
        click.echo(json.dumps(data, indent=2))
    else:
        Console().print(view, crop=False)


def progress_bar(console: Console, title: str, unit: str) -> Progress:
    """A bar that counts ``unit`` while it runs, on a terminal only."""
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeRemainingColumn())
    is_shown = console.is_terminal
    return Progress(TextColumn(title), *columns, console=console, transient=True, disable=not is_shown)


class NamedTable(Table):
    """A table that keeps its names whole: if it has titles, its lines may be longer than the terminal's."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.show_header and not console.is_alt_screen:  # a full screen has no longer lines
            longest = self.__rich_measure__(console, options.update(width=MAX_CHARS)).maximum
            options = options.update(width=max(options.max_width, longest))
        yield from super().__rich_console__(console, options)


def simple_table(
    *columns: str, names: Collection[str] = (), texts: Collection[str] = (), show_header: bool = True
) -> Table:
    """An empty table. Its columns hold numbers, except for ``names`` and ``texts``.

    Names are never cut, since long names differ at the end. Numbers and texts stay on one line.
    """
    table = NamedTable(box=box.SIMPLE, show_header=show_header, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        if column in names:
            table.add_column(column, overflow="fold")
        else:
            table.add_column(column, no_wrap=True, justify="left" if column in texts else "right")
    return table


def moment(at: Any) -> str:
    """A Unix time in words; "?" for what is not a number."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}Z" if isinstance(at, int | float) else "?"


def duration(seconds: float) -> str:
    """Text such as "12 s", "5 min", "3 h" or "2 d"."""
    for size, unit in UNITS:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"
