"""``kronos forecast``."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from kronos_cli.commands import options
from kronos_cli.files.errors import file_error
from kronos_cli.files.inputs import FileReader, Source, find_inputs
from kronos_cli.files.output import KINDS, ForecastFolder, ForecastTable, Kind, LongForm, OutputExists
from kronos_cli.files.run import ForecastRun, Tally
from kronos_cli.one_line_errors import error_as_json, error_is_printed
from kronos_cli.settings import get_settings
from kronos_client.client import ForecastClient
from kronos_client.contract.results import SeriesForecast
from kronos_client.core.forecast_request import default_sample_count
from kronos_client.core.predict_df import ID_COLUMN, TIMESTAMP_COLUMN
from kronos_model.bars.columns import COLUMNS
from kronos_model.bars.files.options import TIMES, ReadOptions
from kronos_model.errors import CandleFileError, InputError
from kronos_model.text import plural

DEFAULT_OUTPUT = Path("output/forecasts")
MAX_ERRORS_SHOWN = 50
MAX_ANSWERS_SHOWN = 50
TABLE_KINDS: dict[str, Kind] = {".csv": "csv", ".parquet": "parquet", ".pq": "parquet", ".json": "json"}


@click.command(cls=options.SectionedCommand)
@click.argument("paths", nargs=-1, required=True, metavar="FILE|FOLDER...", type=click.Path())
@click.option(
    "--output", type=options.PATH, default=DEFAULT_OUTPUT, show_default=True,
    help="A folder with one file per input, or one table of all: NAME.parquet, .csv or .json.",
)  # fmt: skip
@click.option(
    "--format", "kind", type=click.Choice(KINDS), help="Format of the files in a folder.  [default: csv]"
)
@click.option(
    "--target", "targets", type=click.Choice(COLUMNS), multiple=True,
    help="Write the table as Chronos and Nixtla have it, with the forecast of this column: id, time, "
    "target_name, predictions and quantiles. May be repeated.",
)  # fmt: skip
@options.candle_files
@options.of_forecast
@click.option(
    "--deadline",
    "deadline_s",
    type=options.POSITIVE,
    metavar="SECONDS",
    help="Give up a job after this time.",
)
@click.option(
    "--timeout", "timeout_s", type=options.POSITIVE, metavar="SECONDS",
    help="Longest wait for each job. After it, the job is cancelled and its file counts as failed.",
)  # fmt: skip
@click.option(
    "--in-flight", default=64, show_default=True, type=click.IntRange(1, 10_000),
    help="Number of jobs that are queued or running at once.",
)  # fmt: skip
@click.option(
    "--explain", is_flag=True,
    help="Only say what is recognised in the files: which column becomes what, in which zone and unit, and "
    "what is left out.",
)  # fmt: skip
@click.option("--fresh", is_flag=True, help="Repeat forecasts that are already in the output.")
@click.option("--overwrite", is_flag=True, help="Replace output files that this command did not write.")
@click.option("--plot", is_flag=True, help="Draw a chart of each forecast, NAME.png.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def forecast(
    paths: tuple[str, ...], output: Path, kind: Kind | None, in_flight: int, timeout_s: float | None,
    lookback: int | None, sample_count: int | None, no_fallback: bool, fresh: bool, overwrite: bool,
    plot: bool, as_json: bool, explain: bool, targets: tuple[str, ...],
    reading: ReadOptions, **given: Any,
) -> None:  # fmt: skip
    """Forecast candle files: CSV or Parquet, folders of them, or patterns.

    Each file becomes one job for the workers at KRONOS_REDIS_URL. A forecast that is already in the output,
    from the same candles and options, is not repeated: run a stopped command again to continue it. A file
    that fails does not stop the others.

    Exit status: 0 when all files are forecast, 1 when a file failed, 2 if an argument cannot be used, 130
    after Ctrl-C.
    """
    settings = get_settings()
    target = _target_of(output, kind, targets, reading)
    try:
        reader = FileReader(reading)
        files = find_inputs(paths, output)
        inputs = {} if explain else reader.sources(files)
    except InputError as error:
        raise click.UsageError(str(error)) from None
    if explain:
        raise SystemExit(_explain(reader, files.values()))
    if targets:
        _check_distinct(inputs)
    with ForecastClient(settings=settings) as client:
        sent: Any = given | {"missing": reading.missing, "allow_fallback": not no_fallback}
        sent |= {"lookback": lookback} if lookback else {}
        sent |= {"sample_count": sample_count} if sample_count else {}
        run = ForecastRun(
            client, inputs, reader, target, lookback or settings.max_bars, sent,
            max_in_flight=in_flight, timeout_s=timeout_s, fresh=fresh, plot=plot, overwrite=overwrite,
            model_folder=settings.model_folder, num_paths=default_sample_count(settings.limits()),
        )  # fmt: skip
        try:
            run.run(Console(stderr=True, highlight=False))
        except OutputExists as error:
            raise click.UsageError(str(error)) from None
        except BaseException as error:
            if isinstance(error, OSError):  # a chart or table cannot be written
                error = click.ClickException(str(error))
            if isinstance(error, Exception):
                run.tally.error = error_as_json(error)
            if as_json or run.tally.num_done:  # finished forecasts are kept, and errors must be shown
                _print_summary(run.tally, output, as_json=as_json)
                error_is_printed(click.get_current_context())
            raise error from None
    _print_summary(run.tally, output, as_json=as_json)
    raise SystemExit(run.tally.exit_status)


def _target_of(
    output: Path, kind: Kind | None, targets: tuple[str, ...], reading: ReadOptions
) -> ForecastFolder:
    """Where the forecasts go. Raises UsageError if the options do not agree."""
    table_kind = TABLE_KINDS.get(output.suffix.lower())
    if table_kind is not None and kind is not None:
        raise click.UsageError("--format is for a folder: the end of a table's name sets its format")
    if table_kind is None and output.is_file():
        text = f"--output {output} is a file but not a table: a table's name ends in .parquet, .csv or .json"
        raise click.UsageError(text)
    if table_kind is None and output.suffix[1:].isalpha() and not output.is_dir():
        text = f"--output {output}: a table ends in .parquet, .csv (which Excel opens) or .json"
        raise click.UsageError(f"{text}; if a folder is meant, make it first")
    if table_kind is not None and output.is_dir():
        raise click.UsageError(f"--output {output} is a folder with the name of a table: give another name")
    if targets and table_kind not in ("csv", "parquet"):
        raise click.UsageError(f"--target is for a table: --output {output} must end in .parquet or .csv")
    titles = (reading.id_column or ID_COLUMN, reading.columns.get(TIMES, TIMESTAMP_COLUMN))
    form = LongForm(targets, titles) if targets else None
    return ForecastTable(output, table_kind, form) if table_kind else ForecastFolder(output, kind or "csv")


def _explain(reader: FileReader, files: Iterable[Path]) -> int:
    """Print what is recognised in each file. Returns the exit status."""
    status = 0
    for file in files:
        try:
            click.echo("\n  ".join([f"{file}", *reader.open(file).explanation()]))
        except CandleFileError as error:
            click.echo(str(file_error(error)), err=True)
            status = 1
    return status


def _check_distinct(inputs: Mapping[str, Source]) -> None:
    """Refuse instruments that the long form could not distinguish."""
    counts = Counter(source.instrument for source in inputs.values() if source.instrument is not None)
    name, count = next(iter(counts.most_common(1)), ("", 1))
    if count > 1:
        text = f"--target names series by their instrument, and {name} is in {count} files"
        raise click.UsageError(f"{text}: forecast the files one by one, or leave --target out")


def _print_summary(tally: Tally, output: Path, *, as_json: bool) -> None:
    """Print the summary to standard output, errors and warnings to standard error."""
    if as_json:
        click.echo(json.dumps(tally.as_dict(output), indent=2))
        return
    for entry in tally.failed[:MAX_ERRORS_SHOWN]:
        prefix = "" if entry["message"].startswith(entry["file"]) else f"{entry['file']}: "
        click.echo(f"{entry['code']}: {prefix}{entry['message']}", err=True)
    if len(tally.failed) > MAX_ERRORS_SHOWN:
        click.echo(f"… and {len(tally.failed) - MAX_ERRORS_SHOWN} more; --json prints all", err=True)
    for text in tally.warnings:
        click.echo(f"Warning: {text}", err=True)
    for name, series in tally.answers[:MAX_ANSWERS_SHOWN]:
        for text in _answers_of(series):
            click.echo(f"{name}: {text}")
    if len(tally.answers) > MAX_ANSWERS_SHOWN:
        click.echo(f"… and {len(tally.answers) - MAX_ANSWERS_SHOWN} more; the output and --json have all")
    counts = [plural(tally.num_forecast, "forecast")]
    counts += [f"{tally.num_unchanged:,} unchanged"] if tally.num_unchanged else []
    counts += [f"{len(tally.failed):,} failed"] if tally.failed else []
    if tally.is_interrupted:
        counts.append(f"{tally.num_files - tally.num_done:,} left; run the same command to continue")
    click.echo(f"{plural(tally.num_files, 'file')}: {', '.join(counts)}. {output}")


def _answers_of(series: SeriesForecast) -> Iterator[str]:
    """The chances and statistics in words."""
    for chance in series.events:
        yield f"{chance.event}: {chance.in_words()}"
    if series.statistics is not None:
        for name in type(series.statistics).model_fields:
            found = getattr(series.statistics, name)
            yield f"{name.replace('_', ' ')}: {'none' if found is None else found.in_words()}"
