"""Options that several commands share, and types of options."""

import re
from collections.abc import Callable
from dataclasses import fields
from functools import reduce, wraps
from pathlib import Path
from typing import Any, Final, get_args

import click

from kronos_client.core.options import SAMPLE_COUNT
from kronos_model.bars.files.options import ReadOptions
from kronos_model.bars.missing import Missing
from kronos_model.devices import DEVICE_PATTERN
from kronos_model.errors import CandleFileError
from kronos_model.forecast import Event

PATH: Final = click.Path(path_type=Path)
COUNT: Final = click.IntRange(min=1)
POSITIVE: Final = click.FloatRange(min=0, min_open=True)
PRIORITY: Final = click.Choice(["high", "normal", "low"])

DEFAULT_MAX_CONTEXT: Final = 512
OF_FILES: Final = [field.name for field in fields(ReadOptions) if field.name != "columns"]

SECTIONS: Final = dict.fromkeys(["columns", *OF_FILES, "explain"], "Reading the files") | dict.fromkeys(
    ["no_fallback", "priority", "deadline_s", "timeout_s", "in_flight"], "Sending the jobs"
)
"""Headings of options that few users need, by the options' names."""


class SectionedCommand(click.Command):
    """A command whose help lists the options in ``SECTIONS`` under headings of their own."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for option in self.get_params(ctx):
            if isinstance(option, click.Option) and (record := option.get_help_record(ctx)) is not None:
                sections.setdefault(SECTIONS.get(str(option.name), "Options"), []).append(record)
        for heading in sorted(sections):  # Options, Reading the files, Sending the jobs
            with formatter.section(heading):
                formatter.write_dl(sections[heading])


device = click.option("--device", help="auto, cpu, cuda, cuda:N or mps; overrides KRONOS_DEVICE.")
model = click.option("--model", help="Hub id, folder or bundled name; overrides KRONOS_MODEL.")
tokenizer = click.option("--tokenizer", help="Hub id, folder or bundled name; overrides KRONOS_TOKENIZER.")
lookback = click.option(
    "--lookback",
    type=COUNT,
    help="Number of last bars to use.  [default: what the context leaves, up to the longest in training]",
)
samples = click.option(
    "--samples", "sample_count", type=COUNT, help=f"Sample paths.  [default: {SAMPLE_COUNT}, or the limit]"
)
max_context = click.option(
    "--max-context", type=COUNT,
    help=f"Most bars that the model reads.  [default: as in training, else {DEFAULT_MAX_CONTEXT}]",
)  # fmt: skip
pred_len = click.option("--pred-len", default=48, show_default=True, type=COUNT, help="Bars to forecast.")
missing = click.option(
    "--missing", type=click.Choice(get_args(Missing)), default="error", show_default=True,
    help="Rows with blank prices, or prices of zero without volume: refuse them, give them the close "
    "before (also to bars that are not there), or leave them out.",
)  # fmt: skip
priority = click.option("--priority", type=PRIORITY, default="normal", show_default=True)


def levels(text: str) -> tuple[float, ...]:
    """Numbers between 0 and 1, separated by commas. May be empty."""
    try:
        found = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ValueError(f"{text!r} is not a list of numbers like 0.1,0.5,0.9") from None
    if any(not 0 < level < 1 for level in found):
        raise ValueError(f"{text!r}: quantiles lie between 0 and 1")
    return found


def event(text: str) -> str:
    """An event, as jobs name it."""
    try:
        return Event.parse(text).text
    except ValueError as error:
        raise ValueError(f"{text!r} is no event: write {error}") from None


def device_name(text: str) -> str:
    """A device, as jobs name it."""
    if not re.fullmatch(DEVICE_PATTERN, text):
        raise ValueError(f"{text!r} is none of auto, cpu, cuda, cuda:N and mps")
    return text


OF_FORECASTS: Final = (
    pred_len,
    lookback,
    samples,
    click.option("--seed", type=click.IntRange(min=0), help="Seed of the sampling.  [default: a random one]"),
    click.option(
        "--temperature", type=POSITIVE, default=1.0, show_default=True, help="Below 1 calmer, above 1 wilder."
    ),
    click.option(
        "--top-k", type=click.IntRange(min=0), default=0, show_default=True,
        help="Only the k most likely tokens; 0: all.",
    ),
    click.option(
        "--top-p", type=click.FloatRange(0, 1, min_open=True), default=1.0, show_default=True,
        help="Only the most likely tokens of this total probability. Below 1, intervals are too narrow.",
    ),
    click.option(
        "--quantiles", type=levels, default="0.1,0.5,0.9", show_default=True, help="Quantiles to write."
    ),
    click.option("--calibrated", is_flag=True, help="Correct the quantiles by the model's calibration."),
    click.option(
        "--event", "events", type=event, multiple=True, metavar="EVENT",
        help='Print and write the chance of it: "close>last at 24", "close<last-2% at end" or "high>=195 by '
        '10", which means at bar 10 or before. May be repeated.',
    ),
    click.option(
        "--statistics", is_flag=True,
        help="Print return, realised volatility and maximum drawdown of the paths.",
    ),
    click.option(
        "--calendar", metavar="NAME",
        help="Find the future times by an exchange's calendar, such as XNYS, or by 24/7 or weekdays.  "
        "[default: as in the file]",
    ),
    click.option(
        "--timezone", metavar="ZONE", help="IANA zone of the future times, such as America/New_York."
    ),
    click.option("--model", help="A model that the workers serve.  [default: the workers' own]"),
    click.option(
        "--device", type=device_name, metavar="DEVICE", default="auto", show_default=True,
        help="auto, cpu, cuda, cuda:N or mps.",
    ),
    click.option("--no-fallback", is_flag=True, help="Fail if there is no GPU, instead of using the CPU."),
    priority,
)  # fmt: skip


def of_forecast(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of every forecast."""
    return reduce(lambda function, option: option(function), reversed(OF_FORECASTS), command)


def candle_files(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of reading candle files. The command gets them as ``reading``."""

    @click.option(
        "--columns", multiple=True, metavar="NAME=TITLE",
        help='The file\'s title of a column, such as close="Adj Close". May be repeated.',
    )  # fmt: skip
    @click.option(
        "--id-column", metavar="TITLE", help="Column that names the instrument, if a file has several."
    )
    @click.option(
        "--date-format", metavar="FORMAT", help="Form of the times, such as %d/%m/%Y.  [default: as found]"
    )
    @click.option(
        "--decimal", type=click.Choice([".", ","]), help="Decimal sign of the numbers.  [default: as found]"
    )
    @missing
    @click.option(
        "--drop-bad-rows", is_flag=True, help="Leave unusable rows out and count them, instead of failing."
    )
    @click.option(
        "--reject-impossible", is_flag=True,
        help="Count a row whose open or close lies outside low to high as unusable, instead of warning.",
    )  # fmt: skip
    @wraps(command)
    def with_options(columns: tuple[str, ...], **given: Any) -> Any:
        options = {name: given.pop(name) for name in OF_FILES}
        try:
            reading = ReadOptions.parse(columns, "=", **options)
        except CandleFileError as error:
            raise click.UsageError(f"--columns: {error}") from None
        return command(reading=reading, **given)

    return with_options
