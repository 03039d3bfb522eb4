"""One backtest on this worker, from its fields to its report. No torch: other workers compute the forecasts.

It runs in the task's thread, in an event loop of its own. Its forecasts are kept in the job's folder as they
come, so that any worker with the same model folder continues it.
"""

import asyncio
import math
import time
from collections.abc import Sequence
from contextlib import aclosing, closing
from typing import Any, Final

from kronos_client.aio import AsyncForecastClient
from kronos_client.backtesting.run import BacktestInput, BacktestRun, open_backtest
from kronos_client.contract.backtest import BacktestJob, BacktestProgress, BacktestResult, parse_backtest_job
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.jobs import prepare_instruments
from kronos_client.contract.worker_status import AnyWorkerStatus, ForecastWorkerStatus, TrainingStatus
from kronos_client.core.dispatcher import WORTH_ANOTHER_TRY
from kronos_model.finetuning.data import read_files
from kronos_model.text import without_paths
from worker.process import RetryLater
from worker.training.job_inputs import check_path
from worker.training.long_run import MAX_STARTS_AT_SAVE, LongRun

POLL_S: Final = 0.2
WORKER_POLL_S: Final = 1.0
BYTES_PER_INSTRUMENT: Final = 400
"""The most of an instrument in a report, roughly."""
STAGE: Final = "backtest"
"""The stage of training that the worker's status shows."""
OPTIONS: Final = {"models", "windows", "stride", "lookback", "horizon", "samples", "seed", "top", "cost_bps"}
"""Fields of the job that are options of the backtest."""


class BacktestJobRun(LongRun):
    """One backtest."""

    parse = staticmethod(parse_backtest_job)
    continues = "the backtest continues from its forecasts on disk"
    killed_too_often = (
        f"the worker was killed {MAX_STARTS_AT_SAVE} times in a row as it read or scored the candles, most "
        "likely for lack of memory: name fewer files, or give the worker more memory",
        "data",
    )
    _job: BacktestJob

    def _work(self) -> dict[str, object]:
        self._count_start()
        self._note(num_starts=self._notes.num_starts + 1)
        try:
            return asyncio.run(self._stoppable())
        except JobError as error:
            if error.code in WORTH_ANOTHER_TRY:  # Redis does not answer, or a queue is full
                raise self._handed_back(error) from error
            raise

    async def _stoppable(self) -> dict[str, object]:
        """Run the backtest. If it must stop, its forecasts under way are cancelled."""
        async with AsyncForecastClient(settings=self.process.settings) as client:
            work = asyncio.create_task(self._backtest(client))
            while not (await asyncio.wait((work,), timeout=POLL_S))[0]:
                try:
                    self._check()
                except (RetryLater, JobError):
                    work.cancel()
                    await asyncio.wait((work,))
                    raise
            return await work

    async def _backtest(self, client: AsyncForecastClient) -> dict[str, object]:
        # Nothing else runs in this loop while candles are read and the report is made.
        workers = await self._forecast_workers(client)
        self._report("reading")
        options: dict[str, Any] = self._job.model_dump(include=OPTIONS) | self._job.moments
        run = open_backtest(self._read, self._folder.run, workers, self.process.registry, **options)
        with closing(run):
            self._is_resumed = run.num_done > 0
            await self._forecast(client, run)
            self._report("scoring", run)
            report = run.report(on_batch=self._check)
        result = self._completed(BacktestResult, report=report)
        self._folder.drop_forecasts()
        return result

    async def _forecast_workers(self, client: AsyncForecastClient) -> Sequence[AnyWorkerStatus]:
        """All live workers, once one for forecasts is ready. Without one, no default lookback is known."""
        while True:
            workers = await client.workers()
            if any(isinstance(worker, ForecastWorkerStatus) and worker.is_ready for worker in workers):
                return workers
            self._report("waiting")
            await asyncio.sleep(WORKER_POLL_S)

    async def _forecast(self, client: AsyncForecastClient, run: BacktestRun) -> None:
        """Compute the forecasts that are not on disk. Wait as long as Redis is away or a queue is full."""
        began, num_before = time.monotonic(), run.num_done
        self._report("forecasting", run)
        for items in run.passes():
            jobs = client.forecast_many(items, **run.sending, retry_for_s=math.inf)
            async with aclosing(jobs) as outcomes:
                async for outcome in outcomes:
                    run.take(outcome)
                    num_new = run.num_done - num_before
                    pace_s = (time.monotonic() - began) / num_new if num_new else None
                    self._report("forecasting", run, pace_s)

    def _check(self) -> None:
        """Raise RetryLater or JobError if the backtest must stop."""
        if (stop := self._reason_to_stop()) is not None:
            self._uncount_start()
            raise stop

    def _read(self) -> BacktestInput:
        """The job's instruments."""
        data, folder = self._job.data, self.process.data_folder
        instruments = [inline.as_instrument() for inline in prepare_instruments(data.instruments or ())]
        skipped, remarks = dict[str, str](), list[str]()
        if data.path is not None:
            for path in data.paths:
                check_path(folder, path)
            root = f"{folder}/"
            paths = [root + path for path in data.paths]
            instruments, report = read_files(paths, self._job.reading, "reading.")
            skipped = {path.removeprefix(root): without_paths(why) for path, why in report.skipped.items()}
            remarks = [without_paths(text) for text in report.remarks]
        if BYTES_PER_INSTRUMENT * len(instruments) > self.process.settings.limits().max_result_bytes:
            message = f"{len(instruments)} instruments are too many for one report: name fewer files"
            raise JobError(ErrorCode.RESULT_TOO_LARGE, message, "data")
        return BacktestInput(instruments, skipped, remarks)

    def _report(self, stage: Any, run: BacktestRun | None = None, pace_s: float | None = None) -> None:
        """Report progress; ``pace_s`` is the time that one forecast takes."""
        done = total = left_s = None
        if run is not None:
            done, total = run.num_done, run.num_forecasts
            left_s = None if pace_s is None else round(pace_s * (total - done), 1)
        self.progress = BacktestProgress(
            stage=stage, forecasts_done=done, forecasts_total=total, seconds_left=left_s
        ).model_dump()
        name = next(iter(self._job.data.paths), "candles")
        self.process.training = TrainingStatus(
            job_id=self.job_id, name=name, stage=STAGE, step=done, num_steps=total
        )

    def _failed(self, error: JobError) -> JobError:
        """Remove the forecasts. The error has no path of the worker, and not the output that callers name."""
        self._folder.drop_forecasts()
        message, field = without_paths(error.message), error.field
        if field == "output":
            field = None
            if error.code == ErrorCode.INVALID_INPUT:
                message = (
                    "the candles or the workers' own model changed since the backtest began: send it again"
                )
        return JobError(error.code, message, field, error.details)
