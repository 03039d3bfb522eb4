"""ForecastClient: enqueue forecasts, backtests and finetuning from any app, without torch.

For example:

    with ForecastClient("redis://127.0.0.1:6379/0") as client:
        result = client.forecast(df, pred_len=96, sample_count=20)
    result.series[0].frame()
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

from kronos_client.core import job
from kronos_client.core import options as opts
from kronos_client.core.dispatcher import Dispatcher, RedisDispatcher
from kronos_client.core.handle import FinetuneHandle, ForecastHandle, JobHandle, LoopThread, cancelled_if_left
from kronos_client.core.kinds import BACKTEST, FINETUNE, FORECAST, FinetuneState, JobState
from kronos_client.core.series import CandleSource
from kronos_client.settings import ClientSettings, settings_for

if TYPE_CHECKING:
    import pandas as pd

    from kronos_client.contract.results import ForecastResult
    from kronos_client.contract.worker_status import AnyWorkerStatus
    from kronos_client.core.core import Core
    from kronos_client.core.handle import BacktestHandle, RunningLoop
    from kronos_client.core.long_request import ConfigSource
    from kronos_client.core.many import ForecastOutcome, ManyForecasts
    from kronos_client.feeds.feed import Feed
    from kronos_client.feeds.store import FeedStore

__all__ = ["FinetuneHandle", "FinetuneState", "ForecastClient", "ForecastHandle", "JobState"]


class ForecastClient:
    """Enqueues forecast and finetuning jobs and waits for their results.

    Threads, running event loops and forked processes may share a client. All jobs that callers wait for take
    one thread and one connection.

    Args:
        url: URL of the workers' Redis; by default ``KRONOS_REDIS_URL``.
        settings: Limits and lifetimes, as the workers have them; by default from the environment.

    Raises:
        SettingsError: The URL or a variable cannot be used.
    """

    def __init__(self, url: str | None = None, *, settings: ClientSettings | None = None) -> None:
        settings = settings_for(url, settings)
        dispatcher = RedisDispatcher(settings)

        def make_core() -> Core:  # only waiting needs it, and all that it imports
            from kronos_client.core.core import Core
            from kronos_client.core.result_store import RedisResultStore

            return Core(settings, dispatcher, RedisResultStore(settings, dispatcher.redis))

        self._settings = settings
        self._sender: Dispatcher = dispatcher
        self._thread = LoopThread(make_core)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def redis_url(self) -> str:
        """The URL of the workers' Redis, with its password."""
        return self._settings.redis_url.get_secret_value()

    def close(self) -> None:
        """Close the connections. Callers that wait on other threads get RuntimeError, as do later calls."""
        self._thread.close()
        self._sender.close()

    @property
    def _dispatcher(self) -> Dispatcher:
        self._thread.check_open()
        return self._sender

    def workers(self) -> list[AnyWorkerStatus]:
        """The status of every live worker, as announced."""
        return self._dispatcher.workers()

    @opts.with_options(opts.SubmitOptions)
    def forecast(
        self,
        candles: CandleSource,
        *,
        timeout_s: float | None = None,
        on_progress: Callable[[JobState], object] | None = None,
        forget: bool = False,
        **options: Unpack[opts.SubmitOptions],
    ) -> ForecastResult:
        """Submit one job and wait for its result.

        The job is cancelled if it is not done in time, or if this thread is interrupted (Ctrl-C).

        Args:
            candles, options: As ``submit`` takes them.
            timeout_s: Seconds to wait for the result; None for no limit.
            on_progress, forget: As ``wait`` of a job's handle takes them.

        Raises:
            JobError: As ``submit`` and ``wait``. TIMEOUT says whether the job was cancelled.
        """
        make_job = partial(job.candles_job, candles, options)
        handle: ForecastHandle = self._submit(make_job, *job.pop_sending(options), may_stay=False)
        with cancelled_if_left(self._dispatcher, handle.id, timeout_s):
            return handle.wait(timeout_s, on_progress=on_progress, forget=forget)

    @opts.with_options(opts.SubmitOptions)
    def submit(self, candles: CandleSource, **options: Unpack[opts.SubmitOptions]) -> ForecastHandle:
        """Enqueue one job.

        If this thread is interrupted meanwhile, the job is cancelled, unless ``job_id`` is given.

        Args:
            candles: A DataFrame of pandas or polars, a mapping of columns, or a list of records; or for
                several series a list of these, or a mapping from ids to them.
            options: Horizon, sampling, output, model, device and more, as below.

        Raises:
            JobError: The error that the worker would return, as far as the client can check; NO_GPU_WORKER;
                ID_CONFLICT if the id was used for other content; QUEUE_FULL, with ``retry_after_s`` in its
                details; BROKER_UNREACHABLE if nothing was enqueued because Redis does not answer;
                ENQUEUE_UNCERTAIN if Redis did not confirm the job.
        """
        return self._submit(partial(job.candles_job, candles, options), *job.pop_sending(options))

    def submit_job(
        self, payload: dict[str, Any], *, job_id: str | None = None, retry_for_s: float = 0.0
    ) -> ForecastHandle:
        """Enqueue one job in the contract's own form, such as docs/examples/forecast-job.json."""
        return self._submit(partial(job.forecast_job, payload), job_id, retry_for_s)

    @opts.with_options(opts.ManyOptions)
    def forecast_many(
        self, items: Iterable[Any], **options: Unpack[opts.ManyOptions]
    ) -> Generator[ForecastOutcome, None, None]:
        """Forecast thousands of items, each as a job of its own, and yield each one's outcome.

        Items are taken on this thread, as room becomes free. An error is in its item's outcome and ends
        nothing else. Leaving the loop cancels the jobs under way, unless ``job_id_prefix`` is given.

        Args:
            items: Candles as ``submit`` takes them; or ``(key, candles)``, and the key comes back; or ``(key,
                candles, options)``, with the item's own ``future_timestamps`` or other ``ForecastOptions``.
                For several series in one job, use a list, never a tuple.
            options: As ``submit`` takes them, and more, as below.
        """
        from kronos_client.core.many import ManyForecasts, check_items

        check_items(items)
        loop = self._thread.start()
        return self._outcomes(loop, ManyForecasts(loop.core, **options), items)

    def _outcomes(
        self, loop: RunningLoop, many: ManyForecasts, items: Iterable[Any]
    ) -> Generator[ForecastOutcome, None, None]:
        from kronos_client.core.many import END, collect

        source, taken, is_over = iter(items), list[Any](), False
        try:
            while (given := loop.run(many.step(taken, is_over=is_over))) is not END:
                if isinstance(given, int):
                    taken, is_over = collect(source, given)
                else:
                    yield given
        finally:
            with suppress(RuntimeError):  # the client was closed meanwhile
                loop.run(many.leave())

    @opts.with_options(opts.LongOptions)
    def predict_df(self, df: Any, **options: Unpack[opts.LongOptions]) -> pd.DataFrame:
        """Forecast a long frame, the bars of any number of series below each other. Needs pandas.

        The answer is that of Chronos' ``predict_df``: a row for each series, target and bar with id, time,
        ``target_name``, ``predictions`` (the mean) and each quantile; also the chance of each event, and the
        statistics, if they were asked for. A JobError names the series at fault.
        """
        from kronos_client.core.predict_df import LongFrame

        long = LongFrame(df, options)
        with closing(self.forecast_many(long.items(), **long.sending)) as outcomes:
            for outcome in outcomes:
                long.take(outcome)
        return long.frame()

    @opts.with_options(opts.BacktestArguments)
    def backtest(
        self,
        candles: Any,
        output: str | Path,
        *,
        on_progress: Callable[[int, int], object] | None = None,
        **options: Unpack[opts.BacktestArguments],
    ) -> dict[str, Any]:
        """Forecast windows of the past with jobs of low priority, and score them against what followed.

        The forecasts are kept in ``output``: the same call continues where an earlier one was stopped. Needs
        the extra ``cli`` or ``worker``.

        Args:
            candles: Paths of files and folders, or DataFrames by the name of their instrument.
            output: A folder, in which ``report.json``, ``report.html`` and ``forecasts.parquet`` are written.
            on_progress: Called with the forecasts that are done and their total.
            options: Windows, horizon, models and more, as below.

        Returns:
            The content of ``report.json``.

        Raises:
            JobError: An option or the candles cannot be used, or every job would fail.
        """
        from kronos_client.backtesting.run import WORKER_POLL_S, begin_backtest

        attempts = begin_backtest(candles, output, self._dispatcher, options)
        while (begun := next(attempts)) is None:
            time.sleep(WORKER_POLL_S)
        with closing(begun) as run:
            for items in run.passes():
                with closing(self.forecast_many(items, **run.sending)) as outcomes:
                    for outcome in outcomes:
                        run.take(outcome)
                        if on_progress is not None:
                            on_progress(run.num_done, run.num_forecasts)
            return run.report()

    @opts.with_options(opts.BacktestJobOptions)
    def submit_backtest(
        self, data: opts.DataSource, **options: Unpack[opts.BacktestJobOptions]
    ) -> BacktestHandle:
        """Enqueue a backtest that a worker for finetuning runs, as ``backtest`` does here.

        Args:
            data: Paths below the workers' data folder, or the candles, as ``finetune`` takes them.
            options: Windows, horizon, models and more, as below.

        Raises:
            JobError: As ``submit``.
        """
        return self._submit(partial(job.data_job, data, options), *job.pop_sending(options))

    def submit_backtest_job(
        self, payload: dict[str, Any], *, job_id: str | None = None, retry_for_s: float = 0.0
    ) -> BacktestHandle:
        """Enqueue a backtest in the contract's own form, such as docs/examples/backtest-job.json."""
        return self._submit(partial(job.backtest_job, payload), job_id, retry_for_s)

    @opts.with_options(opts.FinetuneOptions)
    def finetune(
        self, config: ConfigSource, *, name: str, **options: Unpack[opts.FinetuneOptions]
    ) -> FinetuneHandle:
        """Enqueue one finetuning job.

        Args:
            config: A FinetuneConfig, a mapping like it, or the path of a YAML or JSON file.
            name: The name of the trained model in the registry, by which forecasts request it.
            options: Data, device, deadline, priority and more, as below.

        Raises:
            JobError: As ``submit``; INVALID_CONFIG with the field, such as ``config.predictor.epochs``.
        """
        return self._submit(partial(job.config_job, config, name, options), *job.pop_sending(options))

    def submit_finetune_job(
        self, payload: dict[str, Any], *, job_id: str | None = None, retry_for_s: float = 0.0
    ) -> FinetuneHandle:
        """Enqueue one finetuning job in the contract's own form, such as docs/examples/finetune-job.json.

        Raises:
            JobError: As ``finetune``.
        """
        return self._submit(partial(job.finetune_job, payload), job_id, retry_for_s)

    @opts.with_options(opts.FeedOptions, refused=opts.ForecastOptions.__annotations__)
    def feed(self, name: str, **options: Unpack[opts.FeedOptions]) -> Feed:
        """Create a feed: series that workers forecast at each new bar. Or open an existing one.

        Close it, or use it in a ``with`` statement: it has connections of its own.

        Args:
            name: Other processes open the feed by it.
            options: Horizon, sampling, output, model and more, as below; without any, the feed must exist.

        Raises:
            JobError: FEED_NOT_FOUND; FEED_CONFLICT, which names an option that the existing feed has with
                another value; LIMIT_EXCEEDED; or what a job with such options gets.
        """
        from kronos_client.feeds.feed import Feed

        store, workers = self._feed_store(), self._dispatcher.known_workers
        return Feed.open(name, settings=self._settings, store=store, workers=workers, **options)

    def _feed_store(self) -> FeedStore:
        from kronos_client.feeds.store import FeedStore

        return FeedStore.from_settings(self._settings)

    def forecast_handle(self, job_id: str) -> ForecastHandle:
        """The handle of a forecast that was enqueued earlier or elsewhere; its ``queue`` is None."""
        return JobHandle(self._thread, FORECAST, job_id, None)

    def finetune_handle(self, job_id: str) -> FinetuneHandle:
        """The handle of a finetuning job that was enqueued earlier or elsewhere; its ``queue`` is None."""
        return JobHandle(self._thread, FINETUNE, job_id, None)

    def backtest_handle(self, job_id: str) -> BacktestHandle:
        """The handle of a backtest that was enqueued earlier or elsewhere; its ``queue`` is None."""
        return JobHandle(self._thread, BACKTEST, job_id, None)

    def _submit(
        self,
        make_job: Callable[..., job.Job],
        job_id: str | None,
        retry_for_s: float,
        *,
        may_stay: bool = True,
    ) -> JobHandle[Any, Any]:
        made, is_chosen = make_job(job_id, self._settings), job_id is not None
        with cancelled_if_left(self._dispatcher, made.id, may_stay=may_stay and is_chosen):
            sent, queue = self._dispatcher.send_again(made, retry_for_s, None if is_chosen else "")
        return JobHandle(self._thread, sent.kind, sent.id, queue)
