"""``kronos demo``: one forecast with all its steps, from starting Redis to a chart."""

import json
import os
import secrets
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import click
import pandas as pd
from celery import states
from redis import Redis
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from kronos_cli.commands.option_types import COUNT, PATH
from kronos_cli.files.bulk import default_lookback
from kronos_cli.files.caution import caution_about
from kronos_cli.settings import CliSettings, get_settings
from kronos_cli.stack.local_redis import LocalRedis
from kronos_cli.stack.own_commands import BUNDLED_MODEL, model_choice, names_redis, own_command, own_node
from kronos_cli.stack.processes import ProcessStack
from kronos_client.client import ForecastClient, ForecastHandle, JobState
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.results import ForecastResult
from kronos_client.contract.worker_status import ForecastWorkerStatus
from kronos_client.redis.connection import connect
from kronos_client.redis.routing import live_workers
from kronos_model.bars.files.lookback import read_candles
from kronos_model.bars.synthetic import candles
from kronos_model.processes.children import ChildProcess, LocalStackError
from kronos_model.processes.environment import own_environment

ANNOUNCED_TIMEOUT_S = 120  # a worker announces itself as loading once torch is imported
READY_TIMEOUT_S = 900  # a first start may download a model
CHECK_INTERVAL_S = 1.0
POLL_S = 0.1
SAMPLE_SEED = 11
NUM_BARS_SHOWN = 5


@dataclass(frozen=True)
class DemoOptions:
    """The options of the demo. None means the default."""

    csv_file: Path | None = None
    lookback: int | None = None
    model: str | None = None
    tokenizer: str | None = None
    device: str | None = None
    pred_len: int = 48
    samples: int = 10
    seed: int = 7
    output: Path | None = None


@click.command()
@click.option("--csv", "csv_file", type=PATH, help="Candles to use instead of synthetic ones.")
@click.option("--lookback", type=COUNT, help="Last bars used. Default: as in training, else 400.")
@click.option("--model", help="Hub id, folder or bundled name; overrides KRONOS_MODEL.")
@click.option("--tokenizer", help="Hub id, folder or bundled name; overrides KRONOS_TOKENIZER.")
@click.option("--device", help="auto, cpu, cuda, cuda:N or mps; overrides KRONOS_DEVICE.")
@click.option("--pred-len", default=48, show_default=True, type=COUNT, help="Bars to forecast.")
@click.option("--samples", default=10, show_default=True, type=COUNT, help="Sample paths.")
@click.option("--seed", default=7, show_default=True, type=click.IntRange(min=0))
@click.option("--output", type=PATH, help="File of the chart.  [default: output/forecast.png]")
@click.option("--json", "as_json", is_flag=True, help="Print the forecast as JSON; steps go to stderr.")
def demo(as_json: bool, **given: Any) -> None:
    """Make one forecast, from an empty machine to a chart: Redis, worker, job, result.

    If KRONOS_REDIS_URL is set, the demo uses that Redis and starts none. Nothing is left running.
    """
    raise SystemExit(run_demo(DemoOptions(**given), get_settings(), as_json=as_json))


def run_demo(options: DemoOptions, settings: CliSettings, *, as_json: bool = False) -> int:
    """Run the demo and print its steps. Returns 0, or 130 when interrupted.

    With ``as_json`` standard output holds only the forecast; the steps go to standard error.

    Raises:
        InputError: The CSV file cannot be used.
        LocalStackError: Redis or the worker cannot be started. The message has the log's last lines.
        JobError: The forecast failed.
    """
    console = Console(highlight=False, stderr=as_json)
    lookback, name = load_lookback(options, settings)
    chart = chart_path(options.output)
    try:
        status, result = _compute(console, options, settings, lookback)
    except KeyboardInterrupt:
        console.print("Interrupted. All started processes are stopped.")
        return 130
    caution = caution_about(result.model.id)
    _report(console, result, status, caution)
    from kronos_cli.files.chart import draw_forecast  # matplotlib takes half a second

    draw_forecast(lookback, result, chart, name=name, caution=caution)
    console.print(f"\nChart    {chart}", soft_wrap=True)
    if as_json:
        made = {"chart": str(chart), "caution": caution, "result": result.model_dump(mode="json")}
        click.echo(json.dumps(made))
    return 0


def _compute(
    console: Console, options: DemoOptions, settings: CliSettings, lookback: pd.DataFrame
) -> tuple[ForecastWorkerStatus, ForecastResult]:
    """Start Redis and a worker, forecast, and stop both. Returns the worker's status and the result."""
    with ExitStack() as exits:
        url = settings.redis_url.get_secret_value()
        stack = ProcessStack()
        if names_redis(settings):
            exits.enter_context(stack)
            console.print("Redis    the one at KRONOS_REDIS_URL")
        else:
            redis = exits.enter_context(LocalRedis())
            exits.enter_context(stack)
            # The stack stops Redis after the worker, which writes to it until it ends.
            stack.adopt(redis.child)
            url = redis.url
            console.print(f"Redis    started on {redis.address}")
        choice = model_choice(settings, options.model, options.tokenizer)
        status = _start_worker(console, stack, url, choice, options)
        return status, _forecast(console, stack, url, lookback, options)


def load_lookback(options: DemoOptions, settings: CliSettings) -> tuple[pd.DataFrame, str]:
    """The bars to forecast from, and their name. The default number is that of the model's training."""
    model = options.model or settings.model or BUNDLED_MODEL
    num_bars = options.lookback or default_lookback(model, settings.model_folder)
    if options.csv_file is not None:
        return read_candles(options.csv_file, num_bars), options.csv_file.name
    return pd.DataFrame(candles(SAMPLE_SEED, num_bars).as_dict()), "synthetic candles"


def chart_path(output: Path | None) -> Path:
    """The chart's path: as given, else in the working folder if writable, else in the temporary folder."""
    if output is not None:
        return output.resolve()
    if os.access(Path.cwd(), os.W_OK):
        return Path.cwd() / "output" / "forecast.png"
    return Path(gettempdir()) / "kronos-forecast.png"


def _start_worker(
    console: Console, stack: ProcessStack, url: str, choice: dict[str, str], options: DemoOptions
) -> ForecastWorkerStatus:
    """Start a worker, wait until it is ready, and return its status."""
    environment = {"KRONOS_REDIS_URL": url, **choice}
    if options.device is not None:
        environment["KRONOS_DEVICE"] = options.device
    node = own_node(f"demo-{secrets.token_hex(4)}")
    # A handshake with other workers would take a second.
    command = own_command("worker", "--hostname", node, "--without-mingle")
    child = stack.start("worker", command, env=own_environment(environment))
    with console.status("Worker   starting, loading the model …"), connect(url) as redis:
        status = _await_ready(redis, node, child)
    assert status.model is not None
    console.print(
        f"Worker   ready on {status.device}, queue {status.queue}: {status.model.id}, "
        f"{status.num_parameters:,} parameters, loaded in {status.load_s:.1f} s",
        soft_wrap=True,
    )
    return status


def _await_ready(redis: Redis, node: str, child: ChildProcess) -> ForecastWorkerStatus:
    started_s = time.monotonic()
    timeout_s = ANNOUNCED_TIMEOUT_S
    while time.monotonic() - started_s < timeout_s:
        for worker in live_workers(redis):
            if isinstance(worker, ForecastWorkerStatus) and worker.node == node:
                if worker.is_ready:
                    return worker
                timeout_s = READY_TIMEOUT_S
        if child.exit_status is not None:
            raise LocalStackError(f"the worker ended before it was ready; its log:\n{_indented(child)}")
        time.sleep(POLL_S)
    raise LocalStackError(f"the worker was not ready after {timeout_s} s; its log:\n{_indented(child)}")


def _indented(child: ChildProcess) -> str:
    return "\n".join(f"    {line}" for line in child.tail())


def _forecast(
    console: Console, stack: ProcessStack, url: str, lookback: pd.DataFrame, options: DemoOptions
) -> ForecastResult:
    with ForecastClient(url) as client:
        handle = client.submit(
            lookback, pred_len=options.pred_len, sample_count=options.samples, seed=options.seed
        )
        paths = f"{options.samples} paths of {options.pred_len} bars"
        console.print(f"Job      {handle.id}: {paths} from {len(lookback)}")
        try:
            return _wait(console, stack, handle, options.pred_len * options.samples)
        except KeyboardInterrupt:
            # In the user's own Redis the job would stay, and another worker would compute it.
            handle.cancel()
            raise


def _wait(console: Console, stack: ProcessStack, handle: ForecastHandle, num_bars: int) -> ForecastResult:
    """Wait for the result. A job of more than a second shows its progress."""
    bars = (BarColumn(), MofNCompleteColumn(), TextColumn("bars"), TimeElapsedColumn())
    progress = Progress(TextColumn("Forecast"), *bars, console=console)
    bar = progress.add_task("forecast", total=num_bars)

    def show(state: JobState) -> None:
        progress.update(bar, completed=num_bars if state.name == states.SUCCESS else state.bars_done)

    with ExitStack() as exits:
        while True:
            try:
                return handle.wait(CHECK_INTERVAL_S, on_progress=show)
            except JobError as error:
                if error.code != ErrorCode.TIMEOUT:
                    raise
            if (dead := stack.dead()) is not None:
                raise LocalStackError(f"{dead.name} died during the forecast; its log:\n{_indented(dead)}")
            if not progress.live.is_started:
                exits.enter_context(progress)


def _report(
    console: Console, result: ForecastResult, status: ForecastWorkerStatus, caution: str | None
) -> None:
    console.print(f"\nDevice   {result.device}")
    # Results repeat the worker's device warning. Each text is printed once.
    for text in dict.fromkeys(filter(None, [result.device_warning, status.device_warning, *result.warnings])):
        console.print(f"Warning  {text}", style="yellow", soft_wrap=True)
    console.print(f"Model    {result.model.id}, tokenizer {result.model.tokenizer_id}")
    if caution is not None:
        console.print(f"         {caution}", style="bold yellow")
    spent = result.timings_ms
    phases = ", ".join(
        f"{name} {getattr(spent, name):.0f} ms" for name in ("queued", "prefill", "decode", "total")
    )
    console.print(f"Time     {phases}")
    table = Table(title=f"The first {NUM_BARS_SHOWN} bars, mean of paths", title_justify="left")
    series = result.series[0]
    table.add_column("time")
    for column in series.mean:
        table.add_column(column, justify="right")
    for row, timestamp in enumerate(series.timestamps[:NUM_BARS_SHOWN]):
        table.add_row(timestamp, *(amount_text(values[row]) for values in series.mean.values()))
    console.print(table)


def amount_text(value: float) -> str:
    """A number with fewer decimals the larger it is."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.4g}"
