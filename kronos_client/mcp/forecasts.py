"""Tools that forecast candles or a file, and the table of a forecast."""

import asyncio
import csv
import io
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Final

import anyio
from mcp_types import CallToolResult
from pydantic import BaseModel, ConfigDict, Field

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.forecast import MAX_EVENTS, MAX_QUANTILES
from kronos_client.contract.results import EventChance, ForecastResult, SeriesForecast, forecast_columns
from kronos_client.core.job import candles_job
from kronos_client.core.kinds import FORECAST
from kronos_client.core.stored import Stored
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
from kronos_model.bars.missing import Missing

TABLE: Final = "kronos://forecasts/{job_id}/table"
CSV: Final = "text/csv"
UP: Final = "close>last at end"


class Candles(BaseModel):
    """The bars of one instrument, oldest first, one value of each column a bar."""

    model_config = ConfigDict(extra="forbid")

    timestamps: Annotated[list[str], Field(description="ISO 8601, all with an offset or all without")]
    open: list[float]
    high: list[float]
    low: list[float]
    close: list[float]
    volume: list[float] | None = None
    amount: list[float] | None = None


Bars = Annotated[int, Field(ge=1, description="bars to forecast")]
File = Annotated[str, Field(description="a CSV or Parquet file of candles")]
Instrument = Annotated[str | None, Field(description="if the file has several; by default the first one")]
Gaps = Annotated[Missing, Field(description="bars without prices: refuse them, fill them, or leave them out")]
Events = Annotated[
    list[str],
    Field(
        max_length=MAX_EVENTS - 1,
        description='such as "close>last+2% at 24", "close<last at end" or "high>=195.5 by 10" (at bar 10 or '
        "before); `last` is the last close",
    ),
]
Model = Annotated[str | None, Field(description="a model of list_models; by default the workers' own")]
Paths = Annotated[int | None, Field(ge=1, description="sample paths; by default 64")]
Seed = Annotated[int | None, Field(ge=0, description="the same job and seed give the same numbers")]
Calendar = Annotated[str | None, Field(description="of the forecast times, such as XNYS, 24/7 or weekdays")]
Levels = Annotated[list[float] | None, Field(max_length=MAX_QUANTILES, description="of the quantiles")]


class Forecasts(Subject):
    """Forecasts. Each answer is a summary with a link to the whole table."""

    @property
    def tools(self) -> Sequence[Tool]:
        return self.forecast_candles, self.forecast_file, self.event_chances, self.get_forecast

    @property
    def resources(self) -> Sequence[Resource]:
        return (Resource(TABLE, CSV, self.forecast_table),)

    async def forecast_candles(
        self,
        context: AnyContext,
        candles: Candles,
        pred_len: Bars,
        events: Events = [],  # noqa: B006  # the schema shows it, and nothing changes it
        model: Model = None,
        sample_count: Paths = None,
        seed: Seed = None,
        quantiles: Levels = None,
        calendar: Calendar = None,
        timezone: Annotated[str | None, Field(description="IANA zone that the forecast times follow")] = None,
    ) -> CallToolResult:
        """Forecast the bars after these candles: range, chances, volatility, and a link to every bar.

        The forecast is a distribution, not a promise. Repeat its `caution` and `warnings` to the user.
        """
        options = _given(
            pred_len=pred_len,
            events=events,
            model=model,
            sample_count=sample_count,
            seed=seed,
            calendar=calendar,
            quantiles=quantiles,
            timezone=timezone,
        )
        return await self._forecast(context, candles.model_dump(exclude_none=True), options)

    async def forecast_file(
        self,
        context: AnyContext,
        file: File,
        pred_len: Bars,
        instrument: Instrument = None,
        missing: Gaps = "error",
        events: Events = [],  # noqa: B006  # the schema shows it, and nothing changes it
        model: Model = None,
        sample_count: Paths = None,
        seed: Seed = None,
        quantiles: Levels = None,
        calendar: Calendar = None,
    ) -> CallToolResult:
        """Forecast the bars after those of a candle file. The answer is that of forecast_candles."""
        options = _given(
            pred_len=pred_len,
            events=events,
            model=model,
            sample_count=sample_count,
            seed=seed,
            calendar=calendar,
            quantiles=quantiles,
        )
        return await self._forecast_file(context, file, instrument, missing, options)

    async def event_chances(
        self,
        context: AnyContext,
        events: Annotated[Events, Field(min_length=1)],
        pred_len: Bars,
        file: File | None = None,
        candles: Candles | None = None,
        instrument: Instrument = None,
        model: Model = None,
        sample_count: Paths = None,
        seed: Seed = None,
        calendar: Calendar = None,
    ) -> CallToolResult:
        """The chances of events in the bars after a file's or after candles, with intervals of 95 %.

        Give `file` or `candles`. The intervals come from the number of paths; how far the model is wrong is
        not in them: only a backtest shows that.
        """
        if (file is None) == (candles is None):
            raise JobError(ErrorCode.BAD_VALUE, "give either file or candles", "file")
        options = _given(
            pred_len=pred_len,
            events=events,
            model=model,
            sample_count=sample_count,
            seed=seed,
            calendar=calendar,
        )
        if candles is not None:
            return await self._forecast(context, candles.model_dump(exclude_none=True), options)
        return await self._forecast_file(context, str(file), instrument, "error", options)

    async def get_forecast(self, context: AnyContext, job_id: str) -> CallToolResult:
        """The forecast of a job that was not done in time, or that somebody else submitted. It may wait."""
        self.service.allow(context, "predict")
        return _view(job_id, await self.service.core.wait(job_id, self.service.wait_s))

    async def forecast_table(self, job_id: str, context: AnyContext) -> str:
        """Every bar of a forecast as CSV: mean, quantiles, and the chances of its events."""
        self.service.allow(context, "predict")
        stored = await self.service.core.events.read(job_id)
        tables = [_columns(series) for series in finished(FORECAST, stored, "get_forecast").series]
        text = io.StringIO()
        writer = csv.DictWriter(text, list(dict.fromkeys(name for table in tables for name in table)))
        writer.writeheader()
        for table in tables:
            writer.writerows(dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True))
        return text.getvalue()

    async def _forecast_file(
        self,
        context: AnyContext,
        file: str,
        instrument: str | None,
        missing: Missing,
        options: dict[str, Any],
    ) -> CallToolResult:
        self.service.allow(context, "predict")
        found = await self.service.candles(file, instrument, missing)
        options |= {"series_ids": [found.name], "timezone": found.timezone, "missing": missing}
        return await self._forecast(context, found.columns, options, found.warnings)

    async def _forecast(
        self, context: AnyContext, candles: Any, options: dict[str, Any], notes: Sequence[str] = ()
    ) -> CallToolResult:
        """Send a job and wait for it. It is cancelled if the caller cancels the call."""
        scope, core = self.service.allow(context, "predict"), self.service.core
        given: Any = _given(**options)
        given |= {"events": list(dict.fromkeys([UP, *given["events"]])), "statistics": True}
        make = partial(candles_job, candles, given, None, core.settings)
        job, _ = await core.send(make, may_stay=False, scope=scope)
        try:
            return _view(job.id, await core.wait(job.id, self.service.wait_s), notes)
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                await core.call(core.dispatcher.try_to_cancel, job.id)
            raise


def _given(**options: Any) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def _view(job_id: str, stored: Stored, notes: Sequence[str] = ()) -> CallToolResult:
    result: ForecastResult | None = result_of(FORECAST, stored)
    if result is None:
        return unfinished(job_id, stored, "get_forecast")
    uri = TABLE.format(job_id=job_id)
    content = {
        "job_id": job_id,
        "state": "done",
        "caution": result.caution,
        "series": [_summary(series) for series in result.series],
        "model": result.model.id,
        "revision": result.model.revision,
        "device": result.device,
        "device_warning": result.device_warning,
        "warnings": [*notes, *result.all_warnings()],
        "table": uri,
    }
    return answer(content, (uri, CSV, "every bar: mean, quantiles, chances"))


def _summary(series: SeriesForecast) -> dict[str, Any]:
    statistics = series.statistics
    shown = () if statistics is None else ("total_return", "realised_volatility", "max_drawdown")
    found = {name: getattr(statistics, name) for name in shown}
    at_end = {"mean": series.mean["close"][-1]}
    at_end |= {f"q{level}": columns["close"][-1] for level, columns in series.quantiles.items()}
    return {
        "id": series.id,
        "bars": len(series.timestamps),
        "first": series.timestamps[0],
        "last": series.timestamps[-1],
        "close_at_end": at_end,
        "chances": [_chance(chance) for chance in series.events],
        **{name: each.in_words() for name, each in found.items() if each is not None},
        "seed": series.seed,
        "lookback": series.lookback,
    }


def _chance(chance: EventChance) -> dict[str, Any]:
    exact = chance.model_dump(include={"event", "probability", "low", "high"})
    return exact | {"in_words": chance.in_words()}


def _columns(series: SeriesForecast) -> dict[str, Sequence[Any]]:
    chances = {chance.event: chance.probability for chance in series.events}
    return forecast_columns(series.id, series.timestamps, series.mean, series.quantiles, chances)
