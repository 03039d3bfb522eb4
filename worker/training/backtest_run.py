"""One backtest on this worker, from its fields to its report. No torch: other workers compute the forecasts.

It runs in the task's thread, in an event loop of its own. Its forecasts are kept in the job's folder as they
come, so that any worker with the same model folder continues it.
"""

import asyncio
import logging
import math
import time
from collections.abc import Sequence
from contextlib import aclosing, closing
from functools import partial
from typing import Any, Final

from kronos_client.aio import AsyncForecastClient
from kronos_client.backtesting.opening import BacktestInput, known_lookback, open_backtest
from kronos_client.backtesting.run import BacktestRun
from kronos_client.contract.backtest import BacktestJob, parse_backtest_job
from kronos_client.contract.backtest_results import BacktestProgress, BacktestResult, BacktestTimings
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.jobs import prepare_instruments
from kronos_client.contract.worker_status import AnyWorkerStatus, ForecastWorkerStatus, TrainingStatus
from kronos_client.core.retrying import WORTH_ANOTHER_TRY
from kronos_model.errors import KronosError
from kronos_model.finetuning.data import read_files
from kronos_model.text import without_paths
from worker.training.child import Stop
from worker.training.job_errors import backtest_killed_too_often
from worker.training.long_run import Interrupted, LongRun

log = logging.getLogger(__name__)

POLL_S: Final = 0.2
RETRY_S: Final = 1.0
BYTES_PER_INSTRUMENT: Final = 400
"""The most of an instrument in a report, roughly."""
STAGE: Final = "backtest"
"""The stage of training that the worker's status shows."""


class _Stopped(Exception):
    """The backtest must stop."""

    def __init__(self, stop: Stop) -> None:
        super().__init__(str(stop))
        self.stop = stop


class BacktestJobRun(LongRun):
    """One backtest."""

    parse = staticmethod(parse_backtest_job)
    _job: BacktestJob

    def _earlier_result(self) -> dict[str, Any] | None:
        return self._folder.read("result.json")

    def _work(self, *, is_first: bool) -> dict[str, Any]:
        if not self._attempts.count_start():
            raise self._failed(backtest_killed_too_often())
        self._attempts.update(num_starts=self._attempts.notes.num_starts + 1)
        try:
            return asyncio.run(self._coordinate())
        except _Stopped as stopped:
            if stopped.stop in (Stop.DRAINED, Stop.CLAIM):
                raise Interrupted(f"the backtest continues from its forecasts on disk: {stopped}") from None
            raise self._stopped(stopped.stop) from None
        except JobError as error:
            if error.code in WORTH_ANOTHER_TRY:  # Redis does not answer, or a queue is full
                self._attempts.uncount_start()
                self._process.is_draining.wait(RETRY_S)  # else the job would come back at once
                raise Interrupted(str(error)) from error
            raise self._failed(_for_sender(error)) from None
        except KronosError as error:
            raise self._failed(JobError.from_kronos(error)) from None

    def _failed(self, error: JobError) -> JobError:
        self._folder.drop_forecasts()
        return error

    async def _coordinate(self) -> dict[str, Any]:
        """Run the backtest. If it must stop, its forecasts under way are cancelled."""
        async with AsyncForecastClient(settings=self._process.settings) as client:
            work = asyncio.create_task(self._backtest(client))
            while not (await asyncio.wait((work,), timeout=POLL_S))[0]:
                if (stop := self._should_stop()) is not None:
                    work.cancel()
                    await asyncio.wait((work,))
                    raise _Stopped(stop)
            return await work

    async def _backtest(self, client: AsyncForecastClient) -> dict[str, Any]:
        # Nothing else runs in this loop while candles are read and the report is made.
        workers = await self._forecast_workers(client)
        self._show("reading")
        names = {"models", "windows", "stride", "lookback", "horizon", "samples", "seed"}
        asked: dict[str, Any] = self._job.model_dump(include=names) | self._job.moments
        lookback_of = partial(known_lookback, self._process.registry)
        run = open_backtest(self._read, self._folder.run, workers, lookback_of, **asked)
        with closing(run):
            is_resumed = run.num_done > 0
            await self._forecast(client, run)
            self._show("scoring", run)
            report = run.report(on_batch=self._check)
        result = BacktestResult(
            report=report,
            queue=self._queue,
            worker=self._process.node,
            timings_ms=BacktestTimings(queued=self._queued_ms, total=self._total_ms),
            num_attempts=self._attempts.notes.num_starts,
            resumed=is_resumed,
        ).model_dump(mode="json")
        self._folder.write("result.json", result)
        self._folder.drop_forecasts()
        return result

    async def _forecast_workers(self, client: AsyncForecastClient) -> Sequence[AnyWorkerStatus]:
        """All live workers, once one for forecasts is ready. Without one, no default lookback is known."""
        while True:
            workers = await client.workers()
            if any(isinstance(worker, ForecastWorkerStatus) and worker.is_ready for worker in workers):
                return workers
            self._show("waiting")
            await asyncio.sleep(RETRY_S)

    async def _forecast(self, client: AsyncForecastClient, run: BacktestRun) -> None:
        """Compute the forecasts that are not on disk. Wait as long as Redis is away or a queue is full."""
        began, num_before = time.monotonic(), run.num_done
        self._show("forecasting", run)
        for items in run.passes():
            jobs = client.forecast_many(items, **run.sending, retry_for_s=math.inf)
            async with aclosing(jobs) as outcomes:
                async for outcome in outcomes:
                    run.take(outcome)
                    num_new = run.num_done - num_before
                    pace_s = (time.monotonic() - began) / num_new if num_new else None
                    self._show("forecasting", run, pace_s)

    def _check(self) -> None:
        if (stop := self._should_stop()) is not None:
            raise _Stopped(stop)

    def _read(self) -> BacktestInput:
        """The job's instruments."""
        data, folder = self._job.data, self._process.data_folder
        instruments = [one.as_instrument() for one in prepare_instruments(data.instruments or ())]
        skipped, remarks = dict[str, str](), list[str]()
        if data.path is not None:
            for path in data.paths:
                folder.check(path)
            root = f"{folder.root}/"
            paths = [root + path for path in data.paths]
            instruments, report = read_files(paths, self._job.reading, "reading.")
            skipped = {path.removeprefix(root): without_paths(why) for path, why in report.skipped.items()}
            remarks = [without_paths(text) for text in report.remarks]
        if BYTES_PER_INSTRUMENT * len(instruments) > self._process.limits.max_result_bytes:
            message = f"{len(instruments)} instruments are too many for one report: name fewer files"
            raise JobError(ErrorCode.RESULT_TOO_LARGE, message, "data")
        return BacktestInput(instruments, skipped, remarks)

    def _show(self, stage: str, run: BacktestRun | None = None, pace_s: float | None = None) -> None:
        """Report progress; ``pace_s`` is the time that one forecast takes."""
        done = total = left_s = None
        if run is not None:
            done, total = run.num_done, run.num_forecasts
            left_s = None if pace_s is None else round(pace_s * (total - done), 1)
        progress = {"stage": stage, "forecasts_done": done, "forecasts_total": total, "seconds_left": left_s}
        self.progress = BacktestProgress.model_validate(progress).model_dump()
        name = next(iter(self._job.data.paths), "candles")
        self._process.training = TrainingStatus(
            job_id=self._job_id, name=name, stage=STAGE, step=done, num_steps=total
        )


def _for_sender(error: JobError) -> JobError:
    """A backtest's error, without the worker's paths and without the output that a caller of Python names."""
    if error.field != "output":
        return JobError(error.code, without_paths(error.message), error.field, error.details)
    message = without_paths(error.message)
    if error.code == ErrorCode.INVALID_INPUT:
        message = "the candles or the workers' own model changed since the backtest began: send it again"
    return JobError(error.code, message, None, error.details)
