"""``kronos forecast``."""

import json
from pathlib import Path
from typing import Any

import click
from pydantic import TypeAdapter, ValidationError
from rich.console import Console

from kronos_cli.files.bulk import BulkOptions, default_lookback
from kronos_cli.files.inputs import find_inputs
from kronos_cli.files.output import ForecastFolder, ForecastTable, OutputExists
from kronos_cli.files.run import ForecastRun, Tally
from kronos_cli.one_line_errors import error_as_json, error_is_printed
from kronos_cli.settings import get_settings
from kronos_client.client import ForecastClient
from kronos_client.contract import forecast as contract
from kronos_client.contract.worker_status import ForecastWorkerStatus
from kronos_model.errors import InputError

DEFAULT_OUTPUT = Path("output/forecasts")
MAX_ERRORS_SHOWN = 50
TABLE_KINDS = {".csv": "csv", ".parquet": "parquet", ".pq": "parquet", ".json": "json"}


class Levels(click.ParamType[tuple[float, ...]]):
    """Numbers between 0 and 1 with commas between, or nothing."""

    name = "levels"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        try:
            levels = tuple(float(text) for text in value.split(",") if text.strip())
        except ValueError:
            self.fail(f"{value!r} is no list of numbers like 0.1,0.5,0.9", param, ctx)
        if any(not 0 < level < 1 for level in levels):
            self.fail(f"{value!r}: quantiles lie between 0 and 1", param, ctx)
        return levels


class Device(click.ParamType[str]):
    """A device as the contract names it."""

    name = "device"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            device: str = TypeAdapter(contract.Device).validate_python(value)
        except ValidationError:
            self.fail(f"{value!r} is none of auto, cpu, cuda, cuda:N and mps", param, ctx)
        return device


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="FILE|FOLDER...", type=click.Path())
@click.option(
    "--output", type=click.Path(path_type=Path), default=DEFAULT_OUTPUT, show_default=True,
    help="A folder for one file each input; or one table of all, as NAME.parquet, .csv or .json.",
)  # fmt: skip
@click.option(
    "--format", "kind", type=click.Choice(["csv", "parquet", "json"]),
    help="Of the files in a folder.  [default: csv]",
)  # fmt: skip
@click.option("--pred-len", default=48, show_default=True, type=click.IntRange(min=1), help="Bars ahead.")
@click.option(
    "--lookback", type=click.IntRange(min=1), help="Last bars used; 400, or what the model was trained on."
)
@click.option(
    "--samples", "sample_count", default=10, show_default=True, type=click.IntRange(min=1),
    help="Sample paths.",
)  # fmt: skip
@click.option(
    "--seed", type=click.IntRange(min=0), help="Of the sampling; another one each time if not given."
)
@click.option("--temperature", type=click.FloatRange(min=0, min_open=True), default=1.0, show_default=True)
@click.option("--top-k", type=click.IntRange(min=0), default=0, show_default=True, help="0: no limit.")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), default=0.9, show_default=True)
@click.option("--quantiles", type=Levels(), default="0.1,0.5,0.9", show_default=True)
@click.option(
    "--timezone", metavar="ZONE", help="IANA zone that the times ahead follow, as America/New_York."
)
@click.option("--model", help="One that the workers serve; their own if not given.")
@click.option(
    "--device", type=Device(), default="auto", show_default=True, help="auto, cpu, cuda, cuda:N or mps."
)
@click.option("--no-fallback", is_flag=True, help="Fail rather than use the CPU for want of a GPU.")
@click.option("--priority", type=click.Choice(["high", "normal", "low"]), default="normal", show_default=True)
@click.option(
    "--deadline", "deadline_s", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
    help="When each job is to be done.",
)  # fmt: skip
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
    help="How long to wait for each job; it is cancelled then, and its file has failed.",
)  # fmt: skip
@click.option(
    "--in-flight", default=64, show_default=True, type=click.IntRange(1, 10_000),
    help="Jobs that are queued or running at once.",
)  # fmt: skip
@click.option("--fresh", is_flag=True, help="Ask also for what is there unchanged.")
@click.option(
    "--overwrite", is_flag=True, help="Replace files at the output that this command did not write."
)
@click.option("--plot", is_flag=True, help="Draw a chart of each forecast, NAME.png.")
@click.option("--json", "as_json", is_flag=True, help="The summary as JSON.")
def forecast(
    paths: tuple[str, ...],
    output: Path,
    kind: str | None,
    in_flight: int,
    timeout_s: float | None,
    lookback: int | None,
    no_fallback: bool,
    fresh: bool,
    overwrite: bool,
    plot: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Forecast candle files: CSV or Parquet, folders of them, or patterns.

    One job for each file goes to the workers at KRONOS_REDIS_URL. What is in the output already, from the
    same candles and options, is not asked for again, so that the same command goes on where one was stopped.
    A file that fails does not stop the others.

    Exit status: 0 when all is forecast, 1 when a file failed, 2 where what was given cannot be used, 130
    after Ctrl-C.
    """
    settings = get_settings()
    table_kind: Any = TABLE_KINDS.get(output.suffix.lower())
    if table_kind is not None and kind is not None:
        raise click.UsageError("--format is for a folder: the name of a table says what it is")
    if table_kind is None and output.is_file():
        raise click.UsageError(
            f"--output {output} is a file and no table: its name must end in .parquet, .csv or .json"
        )
    if table_kind is not None and output.is_dir():
        raise click.UsageError(f"--output {output} is a folder, and its name that of a table")
    folder_kind: Any = kind or "csv"
    target = ForecastTable(output, table_kind) if table_kind else ForecastFolder(output, folder_kind)
    try:
        inputs = find_inputs(paths, output)
    except InputError as error:
        raise click.UsageError(str(error)) from None
    with ForecastClient(settings=settings) as client:
        workers = client.workers()
        if not any(isinstance(worker, ForecastWorkerStatus) for worker in workers):
            click.echo("No worker is alive, so the jobs wait; start one with: kronos worker", err=True)
        bars = lookback or default_lookback(given["model"], settings.model_folder, workers)
        options = BulkOptions(bars, allow_fallback=not no_fallback, **given)
        run = ForecastRun(
            client,
            inputs,
            target,
            options,
            max_in_flight=in_flight,
            timeout_s=timeout_s,
            fresh=fresh,
            plot=plot,
            overwrite=overwrite,
        )
        try:
            tally = run.run(Console(stderr=True, highlight=False))
        except OutputExists as error:
            raise click.UsageError(str(error)) from None
        except BaseException as error:
            if isinstance(error, OSError):  # of a chart or a table: no room, or no right to write there
                error = click.ClickException(str(error))
            if isinstance(error, Exception):
                run.tally.error = error_as_json(error)
            if as_json or run.tally.num_done:  # what is done is kept, and its errors are not to be lost
                _print_summary(run.tally, run.path, as_json=as_json)
                error_is_printed(click.get_current_context())
            raise error from None
    _print_summary(tally, run.path, as_json=as_json)
    raise SystemExit(tally.exit_status)


def _print_summary(tally: Tally, output: Path, *, as_json: bool) -> None:
    """The summary on standard output, errors and warnings on standard error."""
    if as_json:
        click.echo(json.dumps(tally.as_dict(output), indent=2))
        return
    for entry in tally.failed[:MAX_ERRORS_SHOWN]:
        where = "" if entry["message"].startswith(entry["file"]) else f"{entry['file']}: "
        click.echo(f"{entry['code']}: {where}{entry['message']}", err=True)
    if len(tally.failed) > MAX_ERRORS_SHOWN:
        click.echo(f"… and {len(tally.failed) - MAX_ERRORS_SHOWN} more; --json has all", err=True)
    for text in tally.warnings:
        click.echo(f"Warning: {text}", err=True)
    counts = [f"{tally.num_forecast} forecast"]
    counts += [f"{tally.num_unchanged} unchanged"] if tally.num_unchanged else []
    counts += [f"{len(tally.failed)} failed"] if tally.failed else []
    if tally.is_interrupted:
        counts.append(f"{tally.num_files - tally.num_done} left; the same command goes on")
    files = "1 file" if tally.num_files == 1 else f"{tally.num_files} files"
    click.echo(f"{files}: {', '.join(counts)}. {output}")
