"""AsyncForecastClient: the client for asyncio apps. Waiting for a job takes no thread.

For example:

    async with AsyncForecastClient("redis://127.0.0.1:6379/0") as client:
        result = await client.forecast(df, pred_len=96, sample_count=20)
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

from kronos_client.contract.worker_status import AnyWorkerStatus
from kronos_client.core import job
from kronos_client.core import options as opts
from kronos_client.core.core import Core
from kronos_client.core.dispatcher import RedisDispatcher
from kronos_client.core.handle import (
    CLOSED,
    AsyncBacktestHandle,
    AsyncFinetuneHandle,
    AsyncForecastHandle,
    AsyncHandle,
    cancelled_if_left_async,
    submitted,
)
from kronos_client.core.kinds import BACKTEST, FINETUNE, FORECAST, JobState
from kronos_client.core.many import ForecastOutcome, ManyForecasts
from kronos_client.core.result_store import RedisResultStore
from kronos_client.core.series import CandleSource
from kronos_client.settings import ClientSettings, settings_for

if TYPE_CHECKING:
    import pandas as pd

    from kronos_client.backtesting.run import BacktestRun
    from kronos_client.contract.results import ForecastResult
    from kronos_client.core.long_request import ConfigSource
    from kronos_client.feeds.aio import AsyncFeed
    from kronos_client.feeds.store import FeedStore

__all__ = ["AsyncFinetuneHandle", "AsyncForecastClient", "AsyncForecastHandle", "AsyncHandle"]


class AsyncForecastClient:
    """Enqueues forecast and finetuning jobs and waits for their results, in any number of event loops.

    Jobs are checked and sent on a thread of asyncio's default executor. Waiting takes no thread, and all jobs
    of an event loop share one connection. Arguments and errors are those of ``ForecastClient``.

    Args:
        url: URL of the workers' Redis; by default ``KRONOS_REDIS_URL``.
        settings: Limits and lifetimes, as the workers have them; by default from the environment.
    """

    def __init__(self, url: str | None = None, *, settings: ClientSettings | None = None) -> None:
        settings = settings_for(url, settings)
        dispatcher = RedisDispatcher(settings)
        self._serve(lambda: Core(settings, dispatcher, RedisResultStore(settings, dispatcher.redis)))

    def _serve(self, make_core: Callable[[], Core]) -> None:
        self._make_core, self._is_closed = make_core, False
        self._cores: dict[asyncio.AbstractEventLoop | None, Core] = {}
        self._choosing = threading.Lock()

    @property
    def _core(self) -> Core:
        """That of the running event loop: connections and tasks belong to one. None stands for no loop."""
        if self._is_closed:
            raise RuntimeError(CLOSED)
        loop = None
        with suppress(RuntimeError):
            loop = asyncio.get_running_loop()
        with self._choosing:
            if loop not in self._cores:
                alive = {key: core for key, core in self._cores.items() if not (key and key.is_closed())}
                self._cores = alive | {loop: self._make_core()}
            return self._cores[loop]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections. Calls that still wait end in RuntimeError, as do later ones."""
        if self._is_closed:
            return
        core, self._is_closed = self._core, True
        for loop, other in self._cores.items():
            if loop is None:
                other.events.release()
            elif other is not core and loop.is_running():
                asyncio.run_coroutine_threadsafe(other.close(), loop)
        await core.close()
        await core.call(core.dispatcher.close)

    @property
    def redis_url(self) -> str:
        """The URL of the workers' Redis, with its password."""
        return self._core.settings.redis_url.get_secret_value()

    async def workers(self) -> list[AnyWorkerStatus]:
        """The status of every live worker, as announced."""
        workers: list[AnyWorkerStatus] = await self._core.call(self._core.dispatcher.workers)
        return workers

    @opts.with_options(opts.SubmitOptions)
    async def forecast(
        self,
        candles: CandleSource,
        *,
        timeout_s: float | None = None,
        on_progress: Callable[[JobState], object] | None = None,
        forget: bool = False,
        **options: Unpack[opts.SubmitOptions],
    ) -> ForecastResult:
        """Submit one job and wait for its result.

        The job is cancelled if it is not done in time, or if this asyncio task is cancelled.
        """
        make_job = partial(job.candles_job, candles, options)
        handle: AsyncForecastHandle = await self._submit(make_job, *job.pop_sending(options), may_stay=False)
        async with cancelled_if_left_async(handle, timeout_s):
            return await handle.wait(timeout_s, on_progress=on_progress, forget=forget)

    @opts.with_options(opts.SubmitOptions)
    async def submit(
        self, candles: CandleSource, **options: Unpack[opts.SubmitOptions]
    ) -> AsyncForecastHandle:
        """Enqueue one job, as ``ForecastClient.submit``.

        If this asyncio task is cancelled meanwhile, so is the job, unless ``job_id`` is given.
        """
        return await self._submit(partial(job.candles_job, candles, options), *job.pop_sending(options))

    async def submit_job(
        self, payload: dict[str, Any], *, job_id: str | None = None, retry_for_s: float = 0.0
    ) -> AsyncForecastHandle:
        """Enqueue one job in the contract's own form, as ``ForecastClient.submit_job``."""
        return await self._submit(partial(job.forecast_job, payload), job_id, retry_for_s)

    @opts.with_options(opts.ManyOptions)
    def forecast_many(
        self, items: Iterable[Any] | AsyncIterable[Any], **options: Unpack[opts.ManyOptions]
    ) -> AsyncGenerator[ForecastOutcome, None]:
        """As ``ForecastClient.forecast_many``; items may also come from an asynchronous iterable.

        A slow source of items does not delay outcomes that are ready.
        """
        return ManyForecasts(self._core, **options).run(items)

    @opts.with_options(opts.LongOptions)
    async def predict_df(self, df: Any, **options: Unpack[opts.LongOptions]) -> pd.DataFrame:
        """Forecast a long frame, as ``ForecastClient.predict_df``."""
        from kronos_client.core.predict_df import LongFrame

        long: LongFrame = await self._core.call(LongFrame, df, options)
        async with aclosing(self.forecast_many(long.items(), **long.sending)) as outcomes:
            async for outcome in outcomes:
                long.take(outcome)
        frame: pd.DataFrame = await self._core.call(long.frame)
        return frame

    @opts.with_options(opts.BacktestArguments)
    async def backtest(
        self,
        candles: Any,
        output: str | Path,
        *,
        on_progress: Callable[[int, int], object] | None = None,
        **options: Unpack[opts.BacktestArguments],
    ) -> dict[str, Any]:
        """Forecast windows of the past and score them, as ``ForecastClient.backtest``."""
        from kronos_client.backtesting.run import WORKER_POLL_S, begin_backtest

        call = self._core.call
        run: BacktestRun | None
        attempts = begin_backtest(candles, output, self._core.dispatcher, options)
        while (run := await call(next, attempts)) is None:
            await asyncio.sleep(WORKER_POLL_S)
        try:
            for items in run.passes():
                async with aclosing(self.forecast_many(items, **run.sending)) as outcomes:
                    async for outcome in outcomes:
                        await call(run.take, outcome)
                        if on_progress is not None:
                            on_progress(run.num_done, run.num_forecasts)
            report: dict[str, Any] = await call(run.report)
        finally:
            run.close()
        return report

    @opts.with_options(opts.BacktestJobOptions)
    async def submit_backtest(
        self, data: opts.DataSource, **options: Unpack[opts.BacktestJobOptions]
    ) -> AsyncBacktestHandle:
        """Enqueue a backtest that a worker for finetuning runs, as ``ForecastClient.submit_backtest``."""
        return await self._submit(partial(job.data_job, data, options), *job.pop_sending(options))

    async def submit_backtest_job(
        self, payload: dict[str, Any], *, job_id: str | None = None, retry_for_s: float = 0.0
    ) -> AsyncBacktestHandle:
        """Enqueue a backtest in the contract's form, as ``ForecastClient.submit_backtest_job``."""
        return await self._submit(partial(job.backtest_job, payload), job_id, retry_for_s)

    @opts.with_options(opts.FinetuneOptions)
    async def finetune(
        self, config: ConfigSource, *, name: str, **options: Unpack[opts.FinetuneOptions]
    ) -> AsyncFinetuneHandle:
        """Enqueue one finetuning job, as ``ForecastClient.finetune``."""
        return await self._submit(partial(job.config_job, config, name, options), *job.pop_sending(options))

    async def submit_finetune_job(
        self, payload: dict[str, Any], *, job_id: str | None = None, retry_for_s: float = 0.0
    ) -> AsyncFinetuneHandle:
        """Enqueue one finetuning job in the contract's form, as ``ForecastClient.submit_finetune_job``."""
        return await self._submit(partial(job.finetune_job, payload), job_id, retry_for_s)

    @opts.with_options(opts.FeedOptions, refused=opts.ForecastOptions.__annotations__)
    async def feed(self, name: str, **options: Unpack[opts.FeedOptions]) -> AsyncFeed:
        """Create a feed or open an existing one, as ``ForecastClient.feed``."""
        from kronos_client.feeds.aio import AsyncFeed
        from kronos_client.feeds.feed import Feed

        store, workers = self._feed_store(), self._core.dispatcher.known_workers
        given = partial(Feed.open, settings=self._core.settings, store=store, workers=workers)
        return AsyncFeed(await self._core.call(partial(given, name, **options)))

    def _feed_store(self) -> FeedStore:
        from kronos_client.feeds.store import FeedStore

        return FeedStore.from_settings(self._core.settings)

    def forecast_handle(self, job_id: str) -> AsyncForecastHandle:
        """The handle of a forecast that was enqueued earlier or elsewhere; its ``queue`` is None."""
        return AsyncHandle(self._core, FORECAST, job_id, None)

    def finetune_handle(self, job_id: str) -> AsyncFinetuneHandle:
        """The handle of a finetuning job that was enqueued earlier or elsewhere; its ``queue`` is None."""
        return AsyncHandle(self._core, FINETUNE, job_id, None)

    def backtest_handle(self, job_id: str) -> AsyncBacktestHandle:
        """The handle of a backtest that was enqueued earlier or elsewhere; its ``queue`` is None."""
        return AsyncHandle(self._core, BACKTEST, job_id, None)

    async def _submit(
        self,
        make_job: Callable[..., job.Job],
        job_id: str | None,
        retry_for_s: float,
        *,
        may_stay: bool = True,
    ) -> AsyncHandle[Any, Any]:
        make = partial(make_job, job_id, self._core.settings)
        is_chosen = job_id is not None
        scope = None if is_chosen else ""
        return await submitted(self._core, make, retry_for_s, may_stay=may_stay and is_chosen, scope=scope)
