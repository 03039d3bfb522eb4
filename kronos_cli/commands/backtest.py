"""``kronos backtest``."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from kronos_cli.commands import options
from kronos_cli.files.errors import file_error
from kronos_cli.settings import get_settings
from kronos_cli.terminal import progress_bar
from kronos_client.backtesting.window_plan import DEFAULT_WINDOWS
from kronos_client.client import ForecastClient
from kronos_client.contract.errors import JobError
from kronos_model.errors import CandleFileError
from kronos_model.text import plural

DEFAULT_OUTPUT = Path("output/backtest")
TIME = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S"])


@click.command(cls=options.SectionedCommand)
@click.argument("paths", nargs=-1, required=True, metavar="FILE|FOLDER...", type=click.Path(exists=True))
@options.candle_files
@click.option(
    "--output", type=options.PATH, default=DEFAULT_OUTPUT, show_default=True,
    help="Folder for report.html, report.json and forecasts.parquet.",
)  # fmt: skip
@click.option(
    "--windows", type=options.COUNT, show_default=False,
    help="The most windows of each instrument: evenly spread, or with --stride the last ones.  "
    f"[default: {DEFAULT_WINDOWS}, or with --stride all]",
)  # fmt: skip
@click.option("--stride", type=options.COUNT, help="Bars from one window to the next.")
@options.lookback
@click.option("--horizon", default=24, show_default=True, type=options.COUNT, help="Bars to forecast.")
@click.option(
    "--samples", default=30, show_default=True, type=click.IntRange(min=2), help="Sample paths of a window."
)
@click.option(
    "--from",
    "start",
    type=TIME,
    metavar="TIME",
    help="Only windows whose forecast begins at this time or later.",
)
@click.option(
    "--to", "end", type=TIME, metavar="TIME", help="Only windows whose forecast ends at this time or earlier."
)
@click.option(
    "--model", "models", multiple=True,
    help="A model that the workers serve; repeat it to compare several.  [default: the workers' own]",
)  # fmt: skip
@click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Seed of the sampling."
)
@click.option(
    "--top", default=5, show_default=True, type=options.COUNT, help="Instruments on each side of a portfolio."
)
@click.option(
    "--cost-bps", default=10.0, show_default=True, help="Costs of its trades, in basis points of their value."
)
@click.option("--fresh", is_flag=True, help="Repeat the forecasts that are already in the output.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def backtest(
    paths: tuple[str, ...], output: Path, as_json: bool,
    start: datetime | None, end: datetime | None, models: tuple[str, ...], **given: Any,
) -> None:  # fmt: skip
    """Test a model on your own candles: forecast their past, and compare with what followed.

    Windows of the past are ordinary jobs of low priority for the workers at KRONOS_REDIS_URL. The report
    compares the model with naive forecasts and says whether its intervals can be believed. A window's
    forecast reads no bar after its cut. Run a stopped command again to continue it.

    Exit status: 0 with a report, 1 after an error, 2 if an argument cannot be used, 130 after Ctrl-C.
    """
    console = Console(stderr=True, highlight=False)
    progress = progress_bar(console, "Backtest", "forecasts")
    bar = progress.add_task("backtest", total=None)
    settings = get_settings()
    with ForecastClient(settings=settings) as client, progress:
        try:
            report = client.backtest(
                paths,
                output,
                start=start,
                end=end,
                models=models or None,
                model_folder=settings.model_folder,
                on_progress=lambda done, total: progress.update(bar, completed=done, total=total),
                **given,
            )
        except JobError as error:
            if isinstance(error.__cause__, CandleFileError):
                raise file_error(error.__cause__) from None
            raise
    if as_json:
        click.echo(json.dumps(report, indent=2))
        return
    for name, model in report["models"].items():
        click.echo(f"{name}, {plural(report['num_windows'], 'window')}:")
        for line in model["verdict"]:
            click.echo(f"  {line}")
    for remark in report["remarks"]:
        click.echo(f"Warning: {remark}", err=True)
    for file, why in report["left_out"]["files"].items():
        click.echo(f"Warning: {file} is left out: {why}", err=True)
    if left_out := report["left_out"]["windows"]:
        click.echo(f"Warning: {plural(left_out, 'window')} left out:", err=True)
        for code, failure in report["left_out"]["errors"].items():
            click.echo(f"  {code}: {failure['message']}", err=True)
    click.echo(f"Report: {output / 'report.html'}")
