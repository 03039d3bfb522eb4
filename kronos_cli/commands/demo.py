"""``kronos demo``: one forecast with all its steps, from starting Redis to a chart."""

import json
import os
import secrets
import socket
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import click
import pandas as pd
from redis import Redis
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from kronos_cli.commands import options
from kronos_cli.files.errors import file_error
from kronos_cli.settings import CliSettings, get_settings
from kronos_cli.stack.processes import ProcessStack, log_of
from kronos_cli.stack.services import model_choice, own_command, start_redis
from kronos_cli.wording import in_own_words
from kronos_client.client import ForecastClient, ForecastHandle, JobState
from kronos_client.contract import states
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.results import ForecastResult
from kronos_client.contract.worker_status import ForecastWorkerStatus
from kronos_client.core.forecast_request import default_sample_count
from kronos_client.redis.connection import connect
from kronos_client.redis.routing import live_workers
from kronos_model.bars.files.lookback import CandleFile
from kronos_model.bars.files.options import ReadOptions
from kronos_model.bars.synthetic import candles
from kronos_model.engine.native.compiling import is_warm
from kronos_model.errors import CandleFileError
from kronos_model.processes.children import ChildProcess, LocalStackError

ANNOUNCED_TIMEOUT_S = 120  # a worker announces itself as loading once torch is imported
READY_TIMEOUT_S = 900  # a first start may download a model
CHECK_INTERVAL_S = 1.0
POLL_S = 0.1
SAMPLE_SEED = 11
NUM_BARS_SHOWN = 5
NUM_SYNTHETIC_BARS = 400


@click.command(cls=options.SectionedCommand)
@click.option("--csv", "csv_file", type=options.PATH, help="Candles to use instead of synthetic ones.")
@options.candle_files
@options.lookback
@options.model
@options.tokenizer
@options.device
@options.pred_len
@options.samples
@click.option("--seed", default=7, show_default=True, type=click.IntRange(min=0))
@click.option("--output", type=options.PATH, help="File of the chart.  [default: output/forecast.png]")
@click.option("--json", "as_json", is_flag=True, help="Print the forecast as JSON; steps go to stderr.")
def demo(as_json: bool, **given: Any) -> None:
    """Make one forecast, from an empty machine to a chart: Redis, worker, job, result.

    If KRONOS_REDIS_URL is set, the demo uses that Redis and starts none. Nothing is left running.
    """
    run = Demo(Console(highlight=False, stderr=as_json), get_settings(), **given)
    lookback, name = run.candles()
    try:
        status, result = run.compute(lookback)
    except KeyboardInterrupt:
        run.console.print("Interrupted. All started processes are stopped.")
        raise SystemExit(130) from None
    run.report(result, status)
    from kronos_client.contract.chart import draw_chart  # matplotlib takes half a second

    chart = chart_path(run.output)
    (series,) = result.series
    draw_chart(lookback, series, chart, name=name, note=result.origin(series))
    run.console.print(f"\nChart    {chart}", soft_wrap=True)
    if as_json:
        made = {"chart": str(chart), "caution": result.caution, "result": result.model_dump(mode="json")}
        click.echo(json.dumps(made))


def chart_path(output: Path | None) -> Path:
    """The chart's path: as given, else in the working folder if writable, else in the temporary folder."""
    if output is not None:
        return output.resolve()
    if os.access(Path.cwd(), os.W_OK):
        return Path.cwd() / "output" / "forecast.png"
    return Path(gettempdir()) / "kronos-forecast.png"


@dataclass(frozen=True)
class Demo:
    """One run with the command's options. None means the default."""

    console: Console
    settings: CliSettings
    csv_file: Path | None
    reading: ReadOptions
    lookback: int | None
    model: str | None
    tokenizer: str | None
    device: str | None
    pred_len: int
    sample_count: int | None
    seed: int
    output: Path | None

    @property
    def num_paths(self) -> int:
        return self.sample_count or default_sample_count(self.settings.limits())

    def candles(self) -> tuple[pd.DataFrame, str]:
        """The bars that may be read for the forecast, and their name."""
        if self.csv_file is not None:
            try:
                found = CandleFile(self.csv_file, self.reading).last(self.lookback or self.settings.max_bars)
            except CandleFileError as error:
                raise file_error(error) from None
            for text in found.warnings:
                self.console.print(f"Warning  {text}", style="yellow", soft_wrap=True)
            return found.candles, found.name or self.csv_file.name
        bars = candles(SAMPLE_SEED, self.lookback or NUM_SYNTHETIC_BARS)
        return pd.DataFrame(bars.as_dict()), "synthetic candles"

    def compute(self, lookback: pd.DataFrame) -> tuple[ForecastWorkerStatus, ForecastResult]:
        """Start Redis and a worker, forecast, and stop both. Returns the worker's status and the result.

        Raises:
            LocalStackError: Redis or the worker cannot be started. The message has the log's last lines.
            JobError: The forecast failed.
        """
        with ExitStack() as exits:
            stack = ProcessStack()
            redis = start_redis(exits, stack, self.settings)
            shown = "the one at KRONOS_REDIS_URL" if redis is None else f"started on {redis.address}"
            self.console.print(f"Redis    {shown}")
            url = self.settings.redis_url.get_secret_value() if redis is None else redis.url
            return self._start_worker(stack, url), self._forecast(stack, url, lookback)

    def _start_worker(self, stack: ProcessStack, url: str) -> ForecastWorkerStatus:
        """Start a worker, wait until it is ready, and return its status."""
        variables = {"KRONOS_REDIS_URL": url, **model_choice(self.settings, self.model, self.tokenizer)}
        # Which kernels bfloat16 needs is known to PyTorch, which this process does not load.
        if self.settings.dtype != "float32" or not is_warm(("float32", "float32")):
            variables["KRONOS_ENGINE"] = "torch"  # the first job does not wait until they are compiled
        if self.device is not None:
            variables["KRONOS_DEVICE"] = self.device
        node = f"demo-{secrets.token_hex(4)}@{socket.gethostname()}"
        # A handshake with other workers would take a second.
        child = stack.start(
            "worker", own_command("worker", "--hostname", node, "--without-mingle"), variables
        )
        with self.console.status("Worker   starting, loading the model …"), connect(url) as redis:
            status = _await_ready(redis, node, child)
        assert status.model is not None
        self.console.print(
            f"Worker   ready on {status.device}, queue {status.queue}: {status.model.id}, "
            f"{status.num_parameters:,} parameters, loaded in {status.load_s:.1f} s",
            soft_wrap=True,
        )
        return status

    def _forecast(self, stack: ProcessStack, url: str, lookback: pd.DataFrame) -> ForecastResult:
        with ForecastClient(url) as client:
            handle = client.submit(
                lookback,
                pred_len=self.pred_len,
                lookback=self.lookback or "auto",
                sample_count=self.num_paths,
                seed=self.seed,
            )
            self.console.print(f"Job      {handle.id}: {self.num_paths} paths of {self.pred_len} bars")
            try:
                return self._wait(stack, handle)
            except KeyboardInterrupt:
                # In the user's own Redis the job would stay, and another worker would compute it.
                handle.cancel()
                raise

    def _wait(self, stack: ProcessStack, handle: ForecastHandle) -> ForecastResult:
        """Wait for the result. A job of more than a second shows its progress."""
        num_bars = self.pred_len * self.num_paths
        bars = (BarColumn(), MofNCompleteColumn(), TextColumn("bars"), TimeElapsedColumn())
        progress = Progress(TextColumn("Forecast"), *bars, console=self.console)
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
                    text = f"{dead.name} died during the forecast; its log:\n{log_of(dead)}"
                    raise LocalStackError(text)
                if not progress.live.is_started:
                    exits.enter_context(progress)

    def report(self, result: ForecastResult, status: ForecastWorkerStatus) -> None:
        """Print the result's origin and its first bars."""
        show = self.console.print
        show(f"\nDevice   {result.device}, engine {result.engine}")
        # Results repeat the worker's warnings. Each text is printed once.
        for text in dict.fromkeys([*status.all_warnings(), *result.all_warnings()]):
            show(f"Warning  {in_own_words(text)}", style="yellow", soft_wrap=True)
        show(f"Model    {result.model.id}, tokenizer {result.model.tokenizer_id}")
        spent = (f"{phase} {spent_ms:.0f} ms" for phase, spent_ms in result.timings_ms)
        show(f"Time     {', '.join(spent)}")
        table = Table(title=f"The first {NUM_BARS_SHOWN} bars, mean of paths", title_justify="left")
        series = result.series[0]
        table.add_column("time")
        for column in series.mean:
            table.add_column(column, justify="right")
        for row, timestamp in enumerate(series.timestamps[:NUM_BARS_SHOWN]):
            table.add_row(timestamp, *(amount_text(values[row]) for values in series.mean.values()))
        show(table)


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
            raise LocalStackError(f"the worker ended before it was ready; its log:\n{log_of(child)}")
        time.sleep(POLL_S)
    raise LocalStackError(f"the worker was not ready after {timeout_s} s; its log:\n{log_of(child)}")


def amount_text(value: float) -> str:
    """The number as text. A larger number has fewer decimals."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.4g}"
