"""``kronos feed``, and its subcommands list, create, append, follow, latest, scores, watch and delete."""

import json
import math
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, get_args

import click
import pandas as pd
from rich.table import Table

from kronos_cli.commands import options
from kronos_cli.files.errors import file_error
from kronos_cli.files.inputs import FileReader, find_inputs
from kronos_cli.settings import get_settings
from kronos_cli.terminal import duration, show, simple_table
from kronos_cli.wording import in_own_words
from kronos_client.backtesting.run import model_names
from kronos_client.client import ForecastClient
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.core.predict_df import ID_COLUMN, TIMESTAMP_COLUMN
from kronos_client.feeds.blocks import TAIL_BARS
from kronos_client.feeds.feed import Feed
from kronos_client.feeds.scores import By
from kronos_client.feeds.store import FeedStore
from kronos_client.registry.model_registry import ModelRegistry
from kronos_model.bars.columns import COLUMNS
from kronos_model.bars.files.options import TIMES, OfGrowingFiles, ReadOptions
from kronos_model.checkpoints.names import did_you_mean, full_name
from kronos_model.errors import CandleFileError, InputError

NOTHING: Final = Path("/dev/null")
"""``find_inputs`` leaves out what lies where the output goes; a feed has none."""
MAX_ROWS: Final = 20
"""Series that the table of ``latest`` shows."""
QUANTILE: Final = "close_q"
BREAKS: Final = (ErrorCode.BROKER_UNREACHABLE, ErrorCode.FEED_GONE)
"""After these, bars that were appended may be gone: a followed folder is appended whole."""

Version = tuple[int, int, int]
"""Of a file: inode, time of the last change, and size."""

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
name_of_feed = click.argument("name")


@click.group()
def feed() -> None:
    """Keep a universe of symbols current: append bars, and read the newest forecasts as a table."""


@feed.command(name="list")
@as_json
def list_feeds(as_json: bool) -> None:
    """Show all feeds."""
    store = FeedStore.from_settings(get_settings())
    known, table = [], simple_table("feed", "series", "last append", names=("feed",))
    for name, uid, appended_at in store.all():
        age_s, num_series = store.now() - appended_at, len(store.series_ids(uid))
        known.append({"name": name, "series": num_series, "appended_s": round(age_s, 3)})
        table.add_row(name, str(num_series), f"{duration(age_s)} ago")
    show(
        known, table if known else "There are no feeds: make one with `kronos feed create`.", as_json=as_json
    )


@feed.command()
@name_of_feed
@options.of_forecast
@options.missing
@click.option(
    "--bar-time", type=click.Choice(["start", "end"]), default="start", show_default=True,
    help="Whether a bar's time is its start or its end.",
)  # fmt: skip
@click.option("--open-bars", is_flag=True, help="Also take bars that have not ended.")
@click.option(
    "--corrections",
    type=click.IntRange(0, TAIL_BARS),
    help="Last bars that an append may change.  [default: 3]",
)
@click.option(
    "--max-bars", type=click.IntRange(TAIL_BARS), help="Bars that are kept of each series.  [default: 512]"
)
@click.option(
    "--keep", type=click.Choice(COLUMNS), multiple=True,
    help="A column whose mean and quantiles are kept. May be repeated.  [default: close]",
)  # fmt: skip
@click.option(
    "--calibration", type=click.Choice(["adaptive"]), help="Correct intervals by how past ones held."
)
def create(name: str, no_fallback: bool, open_bars: bool, **given: Any) -> None:
    """Create a feed. With equal options, an existing one stays as it is."""
    given |= {"allow_fallback": not no_fallback, "closed_only": not open_bars}
    wanted: Any = {option: value for option, value in given.items() if value not in (None, ())}
    settings, model = get_settings(), given["model"]
    with ForecastClient(settings=settings) as client, client.feed(name, **wanted):
        if model is not None:
            registry = ModelRegistry(settings.model_folder) if settings.model_folder else None
            known = model_names(model, client.workers(), registry)
            if not {full_name(model), model.partition("@")[0]} & {*known}:
                text = (
                    f"Warning: {model} is no model of a live worker, and neither bundled nor registered here"
                )
                text += did_you_mean(model, known) or "."
                click.echo(
                    f"{text} Unless a worker's KRONOS_MODELS names it, all forecasts will fail.", err=True
                )
        click.echo(f"Feed {name} is there. Append bars with: kronos feed append {name} FILE")


@feed.command()
@name_of_feed
@click.argument("paths", nargs=-1, required=True, metavar="FILE|FOLDER...", type=click.Path())
@click.option("--replace", is_flag=True, help="Exchange the series whole, such as after a split.")
@options.candle_files
@as_json
def append(name: str, paths: tuple[str, ...], replace: bool, reading: ReadOptions, as_json: bool) -> None:
    """Append the bars of candle files. A series has the name of its instrument, else of its file.

    Bars that the feed has already are skipped, so files may be appended again as they grow. Each file is
    appended whole or not at all; one that fails does not stop the others.
    """
    outcomes = []
    with _opened(name) as feed:
        try:
            files = find_inputs(paths, NOTHING)
        except InputError as error:
            raise click.UsageError(str(error)) from None
        for title, file in files.items():
            outcomes.append(_append(feed, title, file, reading, is_whole=replace))
            if not as_json:
                _print(outcomes[-1])
    if as_json:
        click.echo(json.dumps(outcomes, indent=2))
    raise SystemExit(any("error" in outcome for outcome in outcomes))


@feed.command()
@name_of_feed
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--every", "every_s", type=click.FloatRange(0.1), default=1.0, show_default=True, help="Seconds."
)
@options.candle_files
def follow(name: str, folder: Path, every_s: float, reading: ReadOptions) -> None:
    """Append the bars of a folder's files whenever one of them grows or is replaced, until Ctrl-C.

    What fails is reported and tried again, as are bars that have not ended yet. A last line without a line
    end is left out until it has one. It ends when the feed is deleted.
    """
    seen: dict[Path, Version] = {}
    said: dict[Path, tuple[Version, str]] = {}
    feed, reading = _opened(name), OfGrowingFiles(**vars(reading))
    while True:
        for title, file, version in _changed(folder, seen):
            outcome = _append(feed, title, file, reading)
            words = version, _in_words(outcome)
            if outcome.get("changed") or said.get(file) != words:
                _print(outcome)
            said[file] = words
            if outcome.get("num_held_back") == 0:
                seen[file] = version
            error = outcome.get("error", {})
            if error.get("code") in BREAKS and "series" not in error:  # else other files go on
                if error["code"] == ErrorCode.FEED_GONE:  # another may have its name by now
                    feed.close()
                    feed = _opened(name)
                seen.clear()
                break
        time.sleep(every_s)


@feed.command()
@name_of_feed
@click.option(
    "--rank", type=options.event, metavar="EVENT", help="Sort by the chance of an event of the feed."
)
@click.option("--max-age", "max_age_s", type=float, metavar="SECONDS", help="Leave out older forecasts.")
@click.option("--csv", "as_csv", is_flag=True, help="Print all columns and rows as CSV.")
@as_json
def latest(name: str, rank: str | None, max_age_s: float | None, as_csv: bool, as_json: bool) -> None:
    """Show the newest forecast of each series: quantiles at the horizon, chances, and its age."""
    with _opened(name) as feed:
        given: Any = {} if max_age_s is None else {"max_age_s": max_age_s}
        rows = feed.rank(rank, **given) if rank else feed.latest(**given)
    if as_csv:
        click.echo(rows.to_csv(index=False), nl=False)
        return
    table = _table(rows, feed.spec.job["pred_len"])
    show(json.loads(rows.to_json(orient="records")), table, as_json=as_json)


@feed.command()
@name_of_feed
@click.option(
    "--by", type=click.Choice(get_args(By)), default="series", show_default=True, help="What has a row."
)
@click.option("--days", type=int, metavar="N", help="Only what was scored in the last N days.")
@as_json
def scores(name: str, by: By, days: int | None, as_json: bool) -> None:
    """Show how past forecasts did: coverage, loss against a bootstrap's, and the chances' Brier score."""
    with _opened(name) as feed:
        rows = feed.score_rows(by, days=days)
    if as_json or not rows:
        show(rows, "Nothing is scored yet: no bar that was forecast has come.", as_json=as_json)
        return
    titles = [title.removeprefix("num_").replace("coverage_", "in ").replace("_", " ") for title in rows[0]]
    table = simple_table(*titles, names=("id", "model"))
    for row in rows:
        shown = (f"{value:.3f}" if isinstance(value, float) else value for value in row.values())
        table.add_row(*("–" if value is None else str(value) for value in shown))
    show(rows, table, as_json=False)


@feed.command()
@name_of_feed
@click.option("--after", metavar="ID", help="Begin after the update with this id; 0: with the oldest.")
def watch(name: str, after: str | None) -> None:
    """Print each new forecast as a line of JSON, until Ctrl-C."""
    with _opened(name) as feed:
        for update in feed.updates(after=after):
            click.echo(update.model_dump_json())


@feed.command()
@name_of_feed
@click.option("--yes", is_flag=True, help="Do not ask before deleting.")
def delete(name: str, yes: bool) -> None:
    """Delete a feed with all its bars and forecasts."""
    with _opened(name) as feed:
        if not yes:
            click.confirm(f"Delete feed {name} with {len(feed.ids())} series for good?", abort=True, err=True)
        feed.delete()
    click.echo(f"Feed {name} is deleted.")


def _opened(name: str) -> Feed:
    return Feed.open(name, settings=get_settings())


def _changed(folder: Path, seen: dict[Path, Version]) -> Iterator[tuple[str, Path, Version]]:
    """The files that are not as they were seen, by their names."""
    try:
        files = find_inputs([str(folder)], NOTHING)
    except InputError:  # none yet
        return
    for title, file in files.items():
        try:
            stat = file.stat()
        except FileNotFoundError:  # renamed since it was listed
            continue
        version = stat.st_ino, stat.st_mtime_ns, stat.st_size
        if seen.get(file) != version:
            yield title, file, version


def _append(
    feed: Feed, title: str, file: Path, reading: ReadOptions, *, is_whole: bool = False
) -> dict[str, Any]:
    """Append a file's bars. Returns what an append returns, or the error, for people; and all warnings."""
    warnings: list[str] = []
    try:
        candles, parts = FileReader(reading).open(file), []
        for instrument in candles.instruments:
            found = candles.last(feed.spec.max_bars, instrument or None)
            warnings += map(in_own_words, found.warnings)
            parts.append(found.candles.assign(**{ID_COLUMN: instrument or title}))
        bars = pd.concat(parts).rename(columns={TIMES: TIMESTAMP_COLUMN})
        done = feed.replace(bars) if is_whole else feed.append(bars)
        return {"file": str(file)} | vars(done) | {"warnings": [*dict.fromkeys([*warnings, *done.warnings])]}
    except CandleFileError as error:
        failure = file_error(error)
    except JobError as error:
        failure = error
    told = {"code": failure.code, "message": in_own_words(failure.message)}
    told |= {name: value for name, value in failure.details.items() if name == "series"}
    return {"file": str(file), "error": told, "warnings": [*dict.fromkeys(warnings)]}


def _print(outcome: dict[str, Any]) -> None:
    click.echo(_in_words(outcome), err="error" in outcome)
    for text in outcome["warnings"]:
        click.echo(f"Warning: {outcome['file']}: {text}", err=True)


def _in_words(outcome: dict[str, Any]) -> str:
    if "error" in outcome:
        return f"{outcome['file']}: {outcome['error']['code']}: {outcome['error']['message']}"
    counts = {"new": outcome["num_new"], "corrected": outcome["num_corrected"]}
    counts["held back"] = outcome["num_held_back"]
    shown = ", ".join(f"{count} {what}" for what, count in counts.items() if count) or "nothing new"
    if until := outcome["held_until"]:
        shown += f" until {until}"
    return f"{outcome['file']}: {shown} ({len(outcome['changed'])} series)"


def _table(rows: pd.DataFrame, pred_len: int) -> Table:
    """The first rows: last bar, age, the close's mean and range at the horizon, chances, and notes."""
    titles = list(map(str, rows))
    by_level = {float(title[len(QUANTILE) :]): title for title in titles if title.startswith(QUANTILE)}
    levels = [0.1, 0.9] if {0.1, 0.9} <= by_level.keys() else sorted(by_level)
    levels = sorted({*levels[:1], *levels[-1:]})
    span = [f"quantile\n{level}" for level in levels]
    span = [f"{100 * (levels[1] - levels[0]):.3g} %\nrange"] if len(levels) > 1 else span
    events = [title for title in titles if any(sign in title for sign in "<>")]
    in_lines = [re.sub("(?<=[<>])| ", "\n", title, count=2) for title in events]
    shown = ("series", "last bar", "age", "last\nclose", f"close\nbar +{pred_len}", *span, *in_lines, "")
    table = simple_table(*shown, names=("series",), texts=("last bar", *span, ""))
    known = rows.head(MAX_ROWS).astype(object)
    for row in known.where(known.notna(), None).to_dict("records"):
        columns = ("last_close", "close_mean", *(by_level[level] for level in levels))
        last, mean, *ends = _prices([row[column] for column in columns])
        at = row["last_time"] or "–"
        at = at if len(at) <= len("2024-06-18") else f"{pd.Timestamp(at):%m-%d %H:%M}"
        cells = [row["id"], at, duration(row["age_s"]), last, mean]
        cells += ["–".join(dict.fromkeys(ends))] if span else []
        cells += ["–" if row[title] is None else f"{row[title]:.0%}" for title in events]
        notes = [row["error"] or ("" if row["is_current"] else "late" if row["overdue_s"] else "queued")]
        notes.append(row["drift"] and f"drift: {row['drift'].replace('_', ' ')}")
        table.add_row(*cells, ", ".join(filter(None, notes)))
    if len(rows) > MAX_ROWS:
        table.caption = f"{len(rows) - MAX_ROWS} more series are not shown; --csv and --json have all"
    return table


def _prices(prices: Sequence[float | None]) -> list[str]:
    """Prices with the same decimals: six digits of the largest."""
    largest = max((price for price in prices if price), default=1.0)
    decimals = max(0, 5 - math.floor(math.log10(largest)))
    return ["–" if price is None else f"{price:.{decimals}f}" for price in prices]
