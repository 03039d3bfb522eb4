"""A forecast's result, which a job with state SUCCESS holds."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from kronos_client.contract.calibration import Calibration
from kronos_client.contract.columns import ColumnName
from kronos_client.contract.forecast import Output, Seed
from kronos_client.contract.jobs import PreparedSeries
from kronos_client.contract.model_info import CalibrationInfo, EngineKind, ModelInfo, ResultModel, Texts
from kronos_client.contract.path_results import (
    EventChance,
    PathStatistics,
    event_chances,
    path_statistics,
    quantile_key,
)
from kronos_model.bars.columns import CLOSE, COLUMNS
from kronos_model.forecast import Forecast

if TYPE_CHECKING:
    import pandas as pd

Values = Annotated[tuple[float, ...], Field(strict=False)]
Paths = Annotated[tuple[Values, ...], Field(strict=False)]


class SeriesForecast(ResultModel):
    """The forecast of one series, over H bars."""

    id: str
    timestamps: Texts = Field(description="of the forecast bars, in the form of the job's")
    timestamps_from: str | None = Field(
        default=None, description="the job, the calendar, or what was inferred from the lookback"
    )
    mean: dict[ColumnName, Values] = Field(description="mean over the paths, H values a column")
    quantiles: dict[str, dict[ColumnName, Values]] = Field(description="by level, as 0.1, then by column")
    paths: dict[ColumnName, Paths] | None = Field(
        default=None, description="by column: sample_count arrays of H values; null unless asked for"
    )
    events: Annotated[tuple[EventChance, ...], Field(strict=False)] = Field(
        default=(), description="the chance of each event that the job names, in its order"
    )
    statistics: PathStatistics | None = Field(default=None, description="null unless asked for")
    seed: Seed = Field(description="the one that was used")
    lookback: int | None = Field(
        default=None, description="bars of the series that the model read, the last ones"
    )
    warnings: Texts = Field(default=(), description="for people, about this series")

    def frame(self) -> "pd.DataFrame":
        """The mean as a DataFrame indexed by time; needs pandas.

        Timestamps with changing offsets (daylight saving) are converted to UTC, as pandas requires.
        """
        import pandas as pd  # apps that read plain numbers do not need it

        try:
            index = pd.DatetimeIndex(pd.to_datetime(list(self.timestamps)), name="timestamps")
        except ValueError:
            index = pd.DatetimeIndex(pd.to_datetime(list(self.timestamps), utc=True), name="timestamps")
        return pd.DataFrame(dict(self.mean), index=index)


class ForecastProgress(ResultModel):
    """The stored meta of a job with state PROGRESS. Unknown values are null."""

    bars_done: int | None = Field(default=None, description="over all paths of all series")
    bars_total: int | None = None
    series: Annotated[tuple[SeriesForecast, ...], Field(strict=False)] = Field(
        default=(),
        description="if the job streams: the first bars of the result of each series that has some, no paths",
    )

    def as_json(self) -> dict[str, Any]:
        """The meta as it is stored, without what is unknown."""
        return self.model_dump(mode="json", exclude_defaults=True)


class Timings(ResultModel):
    """Milliseconds."""

    queued: float = Field(ge=0, description="from submission to the start of computing")
    prefill: float = Field(ge=0)
    decode: float = Field(ge=0)
    total: float = Field(ge=0, description="from submission to the result")


class ForecastResult(ResultModel):
    """The result of a forecast job, its series in the job's order."""

    series: Annotated[tuple[SeriesForecast, ...], Field(strict=False)]
    model: ModelInfo
    calibration: CalibrationInfo | None = Field(
        default=None, description="what corrected the quantiles; null: nothing did"
    )
    device: str = Field(description="the device that computed it, such as cpu or cuda:0")
    device_warning: str | None = Field(default=None, description="why it is not the requested device")
    engine: EngineKind | None = Field(
        default=None, description="what computed the steps: our kernels for CPUs, or PyTorch; null: 0.1.0"
    )
    queue: str
    worker: str
    timings_ms: Timings
    warnings: Texts = Field(
        default=(), description="for people, about the whole job; each series has its own"
    )

    def all_warnings(self) -> list[str]:
        """The job's warnings, then those of each series; with several series, each with its id."""
        each = [(f"Series {one.id!r}: ", text) for one in self.series for text in one.warnings]
        return [*self.warnings, *(text if len(self.series) == 1 else name + text for name, text in each)]


class ErrorReport(ResultModel):
    """A job's error as Celery's JSON backend stores it: state FAILURE, and this as the result."""

    exc_type: Literal["JobError"]
    exc_module: Literal["kronos_client.contract.errors"]
    exc_message: Annotated[tuple[str, str, str | None, dict[str, Any]], Field(strict=False)] = Field(
        description="code, message, field, details"
    )


def forecast_columns(
    name: str,
    timestamps: Sequence[str],
    mean: Mapping[ColumnName, Sequence[float]],
    quantiles: Mapping[str, Mapping[ColumnName, Sequence[float]]],
    chances: Mapping[str, float],
) -> dict[str, Sequence[Any]]:
    """A forecast as a table: ``series``, ``timestamp``, the mean, and each quantile as ``close_q0.1``.

    The chance of an event, whose text is its column's title, is the same in all rows.
    """
    table: dict[str, Sequence[Any]] = {"series": [name] * len(timestamps), "timestamp": timestamps}
    table |= {column: mean[column] for column in COLUMNS if column in mean}
    for level in sorted(quantiles, key=float):
        quantile = quantiles[level]
        table |= {f"{column}_q{level}": quantile[column] for column in COLUMNS if column in quantile}
    return table | {event: [chance] * len(timestamps) for event, chance in chances.items()}


def long_columns(
    name: Any,
    timestamps: Sequence[str],
    mean: Mapping[ColumnName, Sequence[float]],
    quantiles: Mapping[str, Mapping[ColumnName, Sequence[float]]],
    targets: Sequence[Any],
    titles: tuple[str, str],
) -> dict[str, list[Any]]:
    """A forecast in the long form of Chronos: a row for each target and bar.

    The columns are the series and the time, whose titles are given (Nixtla's are ``unique_id`` and ``ds``),
    then ``target_name``, ``predictions`` (the mean), and one for each quantile, such as ``0.1``.
    """
    id_title, time_title = titles
    table: dict[str, list[Any]] = {
        id_title: [name] * len(timestamps) * len(targets),
        time_title: [*timestamps] * len(targets),
        "target_name": [target for target in targets for _ in timestamps],
        "predictions": [value for target in targets for value in mean[target]],
    }
    levels = sorted(quantiles, key=float)
    return table | {
        level: [value for target in targets for value in quantiles[level][target]] for level in levels
    }


def series_result(
    series: PreparedSeries, forecast: Forecast, output: Output, calibration: Calibration | None = None
) -> SeriesForecast:
    """The forecast of one series, or its first bars, with what the job's ``output`` asks for."""
    if output.repair:
        forecast = forecast.repaired()
    levels = output.quantiles
    last_close = float(series.bars[-1, CLOSE])
    tables = np.concatenate([forecast.mean[None], forecast.quantiles(levels)])  # (1 + num_levels, H, 6)
    if calibration is not None and levels:
        tables[1:] = calibration.corrected(levels, tables[1:], series.bars)
    mean, *quantiles = map(_by_column, tables.swapaxes(1, 2).tolist())
    statistics, remarks = path_statistics(forecast, last_close, levels) if output.statistics else (None, [])
    return SeriesForecast(
        id=series.id,
        timestamps=series.future_timestamps[: forecast.paths.shape[1]],
        timestamps_from=series.timestamps_from,
        mean=mean,
        quantiles=dict(zip(map(quantile_key, levels), quantiles, strict=True)),
        paths=_by_column(forecast.paths.transpose(2, 0, 1).tolist()) if output.paths else None,
        events=event_chances(forecast, last_close, output.events),  # type: ignore[arg-type]
        statistics=statistics,
        seed=series.seed,
        lookback=len(series.bars),
        warnings=(*series.warnings, *remarks),
    )


def _by_column(values: list[Any]) -> dict[ColumnName, Any]:
    return dict(zip(COLUMNS, values, strict=True))
