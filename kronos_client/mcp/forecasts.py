"""Tools that forecast candles or a file, and the table of a forecast."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Final

import anyio
from mcp.server.mcpserver import MCPServer
from mcp_types import CallToolResult
from pydantic import BaseModel, ConfigDict, Field

from kronos_client.contract.forecast import MAX_EVENTS
from kronos_client.contract.results import SeriesForecast
from kronos_client.core.forecast_request import fewer_paths
from kronos_client.core.job import candles_job
from kronos_client.core.kinds import FORECAST
from kronos_client.core.options import SAMPLE_COUNT
from kronos_client.core.stored import Stored
from kronos_client.mcp import service as base
from kronos_client.mcp.service import READS, STARTS, AnyContext
from kronos_model.bars.missing import Missing

TABLE: Final = "kronos://forecasts/{job_id}/table"
UP: Final = "close>last at end"
EVENTS: Final = (
    'whose chances it gives, such as "close>last+2% at 24", "close<last at end" or "high>=195.5 by 10" (at '
    "bar 10 or before); `last` is the last close"
)
CHANCE: Final = {"event", "probability", "low", "high"}


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Candles(_Arguments):
    """The bars of one instrument, oldest first, one value of each column a bar."""

    timestamps: Annotated[list[str], Field(description="ISO 8601, all with an offset or all without")]
    open: list[float]
    high: list[float]
    low: list[float]
    close: list[float]
    volume: list[float] | None = None
    amount: list[float] | None = None


class Options(_Arguments):
    """What is left out has the defaults of the Python clients."""

    model: str | None = Field(None, description="one of list_models; by default the workers' own")
    lookback: int | None = Field(None, ge=1, description="last bars that the model reads")
    sample_count: int | None = Field(None, ge=1, description=f"sample paths; by default {SAMPLE_COUNT}")
    seed: int | None = Field(None, ge=0, description="the same job and seed give the same numbers")
    quantiles: list[float] | None = None
    calendar: str | None = Field(None, description="of the forecast times: such as XNYS, 24/7 or weekdays")
    timezone: str | None = Field(None, description="IANA zone that the forecast times follow")
    events: list[str] = Field([UP], max_length=MAX_EVENTS, description=EVENTS)
    missing: Missing = Field("error", description="bars without prices: refuse, fill, or leave them out")


Bars = Annotated[int, Field(ge=1, description="bars to forecast")]
Instrument = Annotated[str | None, Field(description="if the file has several; by default the first one")]
DEFAULTS: Final = Options.model_validate({})


def add(server: MCPServer[Any], service: base.Service) -> None:
    """Add the tools to a server."""

    async def forecast(
        context: AnyContext, candles: Any, given: dict[str, Any], notes: Sequence[str] = ()
    ) -> CallToolResult:
        """Send a job and wait for it. It is cancelled if the caller cancels the call."""
        scope, core = service.allow(context, "predict"), service.core
        make = partial(candles_job, candles, {"statistics": True, **given}, None, core.settings)  # type: ignore[typeddict-item]
        job, _ = await core.send(make, may_stay=False, scope=scope)
        try:
            notes = [*notes, *fewer_paths(given, core.settings.limits())]
            return _view(job.id, await core.wait(job.id, service.wait_s), notes)
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                await core.call(core.dispatcher.try_to_cancel, job.id)
            raise

    @server.tool(**STARTS)
    async def forecast_candles(
        context: AnyContext, candles: Candles, pred_len: Bars, options: Options = DEFAULTS
    ) -> CallToolResult:
        """Forecast the bars after these candles: range, chances of events, volatility, a link to each bar.

        Intervals of chances come from the number of paths: how far the model is wrong, only a backtest shows.
        The forecast is a distribution, not a promise. Repeat its `caution` and `warnings` to the user.
        """
        return await forecast(context, _given(candles), {"pred_len": pred_len, **_given(options)})

    @server.tool(**STARTS)
    async def forecast_file(
        context: AnyContext, file: str, pred_len: Bars,
        instrument: Instrument = None, options: Options = DEFAULTS,
    ) -> CallToolResult:  # fmt: skip
        """Forecast the bars after those of a CSV or Parquet file. The answer is that of forecast_candles."""
        service.allow(context, "predict")
        found = await service.candles(file, instrument, options.missing)
        given = {"timezone": found.timezone, "series_ids": [found.name], **_given(options)}
        return await forecast(context, found.columns, {"pred_len": pred_len, **given}, found.warnings)

    @server.tool(**READS)
    async def get_forecast(context: AnyContext, job_id: str) -> CallToolResult:
        """The forecast of a job that was not done in time, or that somebody else submitted. It may wait."""
        service.allow(context, "predict")
        return _view(job_id, await service.core.wait(job_id, service.wait_s))

    @server.resource(TABLE, mime_type="text/csv")
    async def forecast_table(job_id: str, context: AnyContext) -> str:
        """Every bar of a forecast as CSV: mean and quantiles."""
        import pandas as pd

        service.allow(context, "predict")
        result = await base.finished(service, FORECAST, job_id)
        frames = {series.id: series.frame(quantiles=True) for series in result.series}
        return pd.concat(frames, names=["series"]).to_csv()


def _given(arguments: BaseModel) -> dict[str, Any]:
    return arguments.model_dump(exclude_none=True)


def _view(job_id: str, stored: Stored, notes: Sequence[str] = ()) -> CallToolResult:
    result = FORECAST.result_of(stored)
    if result is None:
        return base.unfinished(job_id, stored, "get_forecast")
    table = TABLE.format(job_id=job_id)
    content: dict[str, Any] = {"job_id": job_id, "state": "done", "caution": result.caution}
    content |= {"series": [_summary(series) for series in result.series], "table": table}
    content |= {"model": result.model.id, "revision": result.model.revision, "device": result.device}
    content |= {"device_warning": result.device_warning, "warnings": [*notes, *result.all_warnings()]}
    return base.answer(content, table, "text/csv")


def _summary(series: SeriesForecast) -> dict[str, Any]:
    at_end = {f"q{level}": columns["close"][-1] for level, columns in series.quantiles.items()}
    chances = [{**each.model_dump(include=CHANCE), "in_words": each.in_words()} for each in series.events]
    numbers = () if series.statistics is None else series.statistics
    return {
        "id": series.id, "bars": len(series.timestamps), "seed": series.seed, "lookback": series.lookback,
        "first": series.timestamps[0], "last": series.timestamps[-1],
        "close_at_end": {"mean": series.mean["close"][-1], **at_end}, "chances": chances,
        **{name: value.in_words() for name, value in numbers if value is not None},
    }  # fmt: skip
