"""Tools that start and read backtests."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Final

from mcp_types import CallToolResult
from pydantic import Field
from pydantic_core import to_json

from kronos_client.contract.backtest import BacktestResult
from kronos_client.core.job import data_job
from kronos_client.core.kinds import BACKTEST
from kronos_client.mcp.service import (
    AnyContext,
    Resource,
    Subject,
    Tool,
    answer,
    finished,
    result_of,
    unfinished,
)

REPORT: Final = "kronos://backtests/{job_id}/report"
JSON: Final = "application/json"
MAX_FILES: Final = 100


class Backtests(Subject):
    """Backtests. A worker for finetuning runs them, so that starting one takes no time."""

    @property
    def tools(self) -> Sequence[Tool]:
        return self.run_backtest, self.get_backtest

    @property
    def resources(self) -> Sequence[Resource]:
        return (Resource(REPORT, JSON, self.backtest_report),)

    async def run_backtest(
        self,
        context: AnyContext,
        files: Annotated[list[str], Field(min_length=1, max_length=MAX_FILES, description="candle files")],
        horizon: Annotated[int, Field(ge=1, description="bars to forecast in each window")] = 24,
        windows: Annotated[int | None, Field(ge=1, description="of each file; by default 40")] = None,
        samples: Annotated[int, Field(ge=2, description="paths of each forecast")] = 30,
        lookback: Annotated[int | None, Field(ge=1, description="bars that the models read")] = None,
        models: Annotated[list[str] | None, Field(min_length=1, description="to compare")] = None,
        start: Annotated[str | None, Field(description="only windows from this date or time on")] = None,
        end: Annotated[str | None, Field(description="only windows up to this date or time")] = None,
        seed: Annotated[int, Field(ge=0)] = 0,
    ) -> CallToolResult:
        """Start a backtest: forecast the past of these files, and compare with what followed.

        It answers the job's id at once and takes minutes. get_backtest has its progress and its verdict.
        """
        scope, core = self.service.allow(context, "train"), self.service.core
        options: Any = {"horizon": horizon, "windows": windows, "samples": samples, "lookback": lookback}
        options |= {"models": models, "start": start, "end": end, "seed": seed}
        data = await self.service.data(files)
        given: Any = {name: value for name, value in options.items() if value is not None}
        make = partial(data_job, data, given, None, core.settings)
        job, queue = await core.send(make, may_stay=True, scope=scope)
        text = "Call get_backtest with this job_id for its progress and its verdict."
        return answer({"job_id": job.id, "state": "queued", "queue": queue, "next": text})

    async def get_backtest(self, context: AnyContext, job_id: str) -> CallToolResult:
        """A backtest's progress, or its verdict on each model against naive forecasts, with its cautions."""
        self.service.allow(context, "train")
        stored = await self.service.core.events.read(job_id)
        result: BacktestResult | None = result_of(BACKTEST, stored)
        if result is None:
            progress = BACKTEST.state_of(stored).progress.model_dump(exclude_none=True)
            return unfinished(job_id, stored, "get_backtest", progress=progress)
        report, uri = result.report, REPORT.format(job_id=job_id)
        content = {
            "job_id": job_id,
            "state": "done",
            "windows": report["num_windows"],
            "verdict": {name: model["verdict"] for name, model in report["models"].items()},
            "remarks": report["remarks"],
            "windows_left_out": report["left_out"]["windows"],
            "files_left_out": report["left_out"]["files"],
            "report": uri,
        }
        return answer(content, (uri, JSON, "the whole report: all scores, by horizon and by instrument"))

    async def backtest_report(self, job_id: str, context: AnyContext) -> str:
        """The whole report of a backtest, as report.json."""
        self.service.allow(context, "train")
        stored = await self.service.core.events.read(job_id)
        return to_json(finished(BACKTEST, stored, "get_backtest").report).decode()
