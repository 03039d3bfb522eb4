"""A forecast's result, which a job with state SUCCESS holds."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr

from kronos_client.contract.calibration import Calibration
from kronos_client.contract.columns import ColumnName
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.forecast import ForecastJob, Output, Seed, SeriesInput
from kronos_client.contract.jobs import PreparedSeries
from kronos_client.contract.manifest import Manifest
from kronos_client.contract.model_info import CalibrationInfo, EngineKind, ModelInfo, ResultModel, Texts
from kronos_model.bars.columns import CLOSE, COLUMNS
from kronos_model.checkpoints.names import FOR_TRYING, caution_in
from kronos_model.forecast import (
    Event,
    Forecast,
    max_drawdown,
    path_quantiles,
    realised_volatility,
    standard_error,
    total_return,
    wilson_interval,
)
from kronos_model.text import plural

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


SCORED_LEVELS: Final = (0.025, 0.1, 0.25, 0.5, 0.75, 0.9, 0.975)
"""Levels of the quantiles by which feeds score: the ends of intervals of 95, 80 and 50 %, and the median."""
MIN_PATHS_OF_QUANTILES: Final = 20
MIN_PATHS_OF_EVENTS: Final = 25
"""The standard error of a chance is then at most 10 points, √(0.25 / 25)."""

Share = Annotated[float, Field(ge=0, le=1)]


class EventChance(ResultModel):
    """The chance of an event: the share of the paths in which it happens.

    Its error is that of drawing a limited number of paths. How far the model itself is wrong is not in it.
    """

    event: str = Field(description="as in the job")
    probability: Share = Field(description="num_hits / num_paths")
    standard_error: float | None = Field(
        description="of the binomial distribution; null if it happens in no path or in all of them"
    )
    low: Share = Field(description="lower end of the interval of 95 %, by Wilson's formula")
    high: Share = Field(description="its upper end")
    num_hits: int = Field(ge=0, description="paths in which it happens")
    num_paths: int = Field(ge=1)

    def in_words(self) -> str:
        """Such as "63.3 % ± 8.8 (19 of 30 paths)" or "fewer than 1 in 30 paths (95 %: at most 11.4 %)"."""
        if self.num_hits == 0:
            return f"fewer than 1 in {self.num_paths} paths (95 %: at most {100 * self.high:.1f} %)"
        if self.standard_error is None:
            return f"all of {self.num_paths} paths (95 %: at least {100 * self.low:.1f} %)"
        chance = f"{100 * self.probability:.1f} % ± {100 * self.standard_error:.1f}"
        return f"{chance} ({self.num_hits} of {self.num_paths} paths)"


class Distribution(ResultModel):
    """One number of each path, over the paths."""

    mean: float
    standard_error: float | None = Field(description="of the mean; null for a single path")
    quantiles: dict[str, float] = Field(description="by level, as the forecast's")

    def in_words(self) -> str:
        """Such as "1.2 % (-0.8 to 3.1)", with the outermost quantiles."""
        ends = sorted(self.quantiles.values())
        outer = f" ({100 * ends[0]:z.1f} to {100 * ends[-1]:z.1f})" if len(ends) > 1 else ""
        return f"{100 * self.mean:z.1f} %{outer}"


class PathStatistics(ResultModel):
    """Statistics of the closes over the whole horizon, as fractions: 0.02 is 2 %."""

    total_return: Distribution = Field(description="last close over the last one of the lookback, minus 1")
    realised_volatility: Distribution | None = Field(
        description="root of the sum of squared log returns from close to close, not annualised; null if no "
        "path stays above zero"
    )
    max_drawdown: Distribution = Field(
        description="deepest fall of the close below an earlier one, the lookback's last included; 0 or more"
    )


def event_chances(forecast: Forecast, last_close: float, events: Sequence[Event]) -> list[EventChance]:
    """The chance of each event, in the order given."""
    chances, num_paths = [], len(forecast.paths)
    for event in events:
        num_hits = int(event.happens(forecast.paths, last_close).sum())
        low, high = wilson_interval(num_hits, num_paths)
        chances.append(
            EventChance(
                event=event.text,
                probability=num_hits / num_paths,
                standard_error=standard_error(num_hits, num_paths),
                low=low,
                high=high,
                num_hits=num_hits,
                num_paths=num_paths,
            )
        )
    return chances


def path_statistics(
    forecast: Forecast, last_close: float, levels: Sequence[float]
) -> tuple[PathStatistics, list[str]]:
    """The statistics with quantiles at these levels, and warnings about them."""
    volatility = realised_volatility(forecast.paths, last_close)
    usable = volatility[~np.isnan(volatility)]
    statistics = PathStatistics(
        total_return=_distribution(total_return(forecast.paths, last_close), levels),
        realised_volatility=_distribution(usable, levels) if len(usable) else None,
        max_drawdown=_distribution(max_drawdown(forecast.paths, last_close), levels),
    )
    if len(usable) == len(volatility):
        return statistics, []
    left_out = f"{len(volatility) - len(usable)} of {len(volatility)} paths have a close at zero or below"
    return statistics, [f"{left_out}: they are left out of the realised volatility."]


def _distribution(values: NDArray[np.float64], levels: Sequence[float]) -> Distribution:
    quantiles = path_quantiles(values, levels).tolist() if levels else ()
    return Distribution(
        mean=float(values.mean()),
        standard_error=float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None,
        quantiles=dict(zip(map(quantile_key, levels), quantiles, strict=True)),
    )


def quantile_key(level: float) -> str:
    """The key of a level's quantile: its shortest decimal, such as 0.1."""
    return repr(float(level))


def sampling_warnings(job: ForecastJob) -> list[str]:
    """Warn of quantiles and chances over too few paths, with the number that would do."""
    num_paths, levels = job.sampling.sample_count, job.output.quantiles
    paths = plural(num_paths, "sample path")
    warnings = []
    if levels and num_paths < MIN_PATHS_OF_QUANTILES:
        warnings.append(f"Quantiles of {paths} say little: draw {MIN_PATHS_OF_QUANTILES} or more.")
    outermost = min((min(level, 1 - level) for level in levels), default=0.5)
    needed = math.ceil(round(1 / outermost, 6)) - 1  # its position, level · (paths + 1), is then 1 or more
    if num_paths < needed and num_paths >= MIN_PATHS_OF_QUANTILES:
        level = next(level for level in levels if min(level, 1 - level) == outermost)
        text = f"The quantile {level:g} lies beyond the outermost of {paths}, which stands in for it"
        warnings.append(f"{text}: draw {needed} or more.")
    if job.output.events and num_paths < MIN_PATHS_OF_EVENTS:
        points = 50 / math.sqrt(num_paths)
        text = f"Chances from {paths} have a standard error of up to {points:.0f} points"
        warnings.append(f"{text}: draw {MIN_PATHS_OF_EVENTS} or more for 10, 100 or more for 5.")
    return warnings


Values = Annotated[tuple[float, ...], Field(strict=False)]
Paths = Annotated[tuple[Values, ...], Field(strict=False)]


class SeriesForecast(ResultModel):
    """The forecast of one series, over H bars."""

    id: str
    timestamps: Texts = Field(description="of the forecast bars, in the form of the job's")
    timestamps_from: str | None = Field(
        default=None, description="the job, the calendar, or what was inferred from the lookback"
    )
    timezone: str | None = Field(default=None, description="IANA time zone of the timestamps; as in the job")
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
    scoring: Annotated[tuple[Values, ...], Field(strict=False)] | None = Field(
        default=None,
        description="the close's quantiles at 0.025, 0.1, 0.25, 0.5, 0.75, 0.9, 0.975; null if not asked for",
    )
    manifest: Manifest | None = Field(
        default=None, description="what it was computed from, for `kronos replay`; null while it streams"
    )

    _note: str = PrivateAttr("")
    """``FOR_TRYING`` if it belongs to a result of such a model."""

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        ends = {"last": self.timestamps[-1], "mean_close": self.mean["close"][-1]} if self.timestamps else {}
        return ({"id": self.id, "bars": len(self.timestamps)} | ends).items()

    def _repr_html_(self) -> str:
        from kronos_client.contract.notebook import series_html

        return series_html(self)

    def plot(self, candles: Any = None, *, note: str = "") -> "Axes":
        """Draw the close with its range, and the volume, in a figure of Matplotlib's pyplot.

        Args:
            candles: The lookback, which is drawn before it; as ``ForecastClient.forecast`` takes one series.
            note: Small print below the title.

        Returns:
            The axes of the prices; their ``figure`` has ``savefig``.

        Raises:
            JobError: NOT_INSTALLED without the extra ``plot``.
        """
        try:
            from kronos_client.contract import chart
        except ImportError:
            text = "a plot needs Matplotlib and pandas: install kronos-worker[plot]"
            raise JobError(ErrorCode.NOT_INSTALLED, text) from None
        return chart.plot(candles, self, note or self._note)

    def frame(self, *, quantiles: bool = False) -> "pd.DataFrame":
        """The mean as a DataFrame indexed by time, in the job's time zone; needs pandas.

        With ``quantiles`` also each of them, in columns such as ``close_q0.1``. Without a zone, timestamps
        with changing offsets are converted to UTC, as pandas requires.
        """
        import pandas as pd  # apps that read plain numbers do not need it

        try:
            index = pd.DatetimeIndex(pd.to_datetime(list(self.timestamps)), name="timestamps")
        except ValueError:
            index = pd.DatetimeIndex(pd.to_datetime(list(self.timestamps), utc=True), name="timestamps")
        if self.timezone is not None and index.tz is not None:
            index = index.tz_convert(self.timezone)
        shown = dict(self) | {"events": ()} | ({} if quantiles else {"quantiles": {}})
        columns = forecast_columns(self.id, shown)
        return pd.DataFrame(dict(list(columns.items())[2:]), index=index)


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

    def model_post_init(self, _context: Any) -> None:
        """A series that is drawn alone says what its model is for, too."""
        for series in self.series if self.caution else ():
            series._note = FOR_TRYING

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        counts = {"series": len(self.series), "warnings": len(self.all_warnings())}
        return ({"model": self.model.id, "device": self.device} | counts).items()

    def _repr_html_(self) -> str:
        from kronos_client.contract.notebook import result_html

        return result_html(self)

    def plot(self, candles: Any = None, *, series: int = 0) -> "Axes":
        """Draw one series as ``SeriesForecast.plot``, with the model in small print."""
        chosen = self.series[series]
        return chosen.plot(candles, note=self.origin(chosen))

    def origin(self, series: SeriesForecast) -> str:
        """A chart's small print: what drew a series, and whether that is only for trying the service."""
        caution = "" if self.caution is None else f"; {FOR_TRYING}"
        return f"{self.model.id} on {self.device}, seed {series.seed}{caution}"

    @property
    def caution(self) -> str | None:
        """The warning that the model is only for trying the service."""
        return caution_in(self.warnings)

    def all_warnings(self) -> list[str]:
        """The job's warnings, then those of each series; with several series, each with its id."""
        each = [(f"Series {series.id!r}: ", text) for series in self.series for text in series.warnings]
        return [*self.warnings, *(text if len(self.series) == 1 else name + text for name, text in each)]


class ErrorReport(ResultModel):
    """A job's error as Celery's JSON backend stores it: state FAILURE, and this as the result."""

    exc_type: Literal["JobError"]
    exc_module: Literal["kronos_client.contract.errors"]
    exc_message: Annotated[tuple[str, str, str | None, dict[str, Any]], Field(strict=False)] = Field(
        description="code, message, field, details"
    )


def forecast_columns(
    name: str, forecast: Mapping[str, Any], caution: str | None = None
) -> dict[str, Sequence[Any]]:
    """A forecast as a table: ``series``, ``timestamp``, the mean, and each quantile as ``close_q0.1``.

    ``forecast`` has the fields of a ``SeriesForecast``, or its JSON. Chances of events, whose texts are the
    titles, and the ``caution`` are the same in all rows.
    """
    timestamps, mean, quantiles = forecast["timestamps"], forecast["mean"], forecast["quantiles"]
    chances = map(dict, forecast.get("events", ()))
    constants = {chance["event"]: chance["probability"] for chance in chances}
    constants |= {} if caution is None else {"caution": caution}
    table: dict[str, Sequence[Any]] = {"series": [name] * len(timestamps), "timestamp": timestamps}
    table |= {column: mean[column] for column in COLUMNS if column in mean}
    for level in sorted(quantiles, key=float):
        quantile = quantiles[level]
        table |= {f"{column}_q{level}": quantile[column] for column in COLUMNS if column in quantile}
    return table | {title: [value] * len(timestamps) for title, value in constants.items()}


def long_columns(
    name: Any, forecast: Mapping[str, Any], targets: Sequence[str], titles: tuple[str, str]
) -> dict[str, list[Any]]:
    """A forecast in the long form of Chronos: a row for each target and bar.

    ``forecast`` is that of ``forecast_columns``. The columns are the series and the time, whose titles are
    given (Nixtla's are ``unique_id`` and ``ds``), then ``target_name``, ``predictions`` (the mean), and one
    for each quantile, such as ``0.1``.
    """
    timestamps, mean, quantiles = forecast["timestamps"], forecast["mean"], forecast["quantiles"]
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
    levels, scored = output.quantiles, SCORED_LEVELS if output.scoring else ()
    last_close, num_tables = float(series.bars[-1, CLOSE]), 1 + len(levels)
    tables = np.concatenate([forecast.mean[None], forecast.quantiles((*levels, *scored))])  # (…, H, 6)
    if calibration is not None:
        for part, of_part in ((slice(1, num_tables), levels), (slice(num_tables, None), scored)):
            if of_part:
                tables[part] = calibration.corrected(of_part, tables[part], series.bars)
    mean, *quantiles = map(_by_column, tables[:num_tables].swapaxes(1, 2).tolist())
    statistics, remarks = path_statistics(forecast, last_close, levels) if output.statistics else (None, [])
    return SeriesForecast(
        id=series.id,
        timestamps=series.future_timestamps[: forecast.paths.shape[1]],
        timestamps_from=series.timestamps_from,
        timezone=series.timezone,
        mean=mean,
        quantiles=dict(zip(map(quantile_key, levels), quantiles, strict=True)),
        paths=_by_column(forecast.paths.transpose(2, 0, 1).tolist()) if output.paths else None,
        events=event_chances(forecast, last_close, output.events),  # type: ignore[arg-type]
        statistics=statistics,
        seed=series.seed,
        lookback=len(series.bars),
        warnings=(*series.warnings, *remarks),
        scoring=tables[num_tables:, :, CLOSE].tolist() if scored else None,
    )


def with_manifests(
    forecasts: Iterable[SeriesForecast], job: ForecastJob, series: Iterable[PreparedSeries], **facts: Any
) -> tuple[SeriesForecast, ...]:
    """The forecasts of a job with manifests; ``facts`` are model, calibration, engine, device and version."""

    def made(forecast: SeriesForecast, given: SeriesInput, prepared: PreparedSeries) -> SeriesForecast:
        manifest = Manifest.of(job, given, prepared.given, forecast, seed=prepared.seed, **facts)
        return forecast.model_copy(update={"manifest": manifest})

    return tuple(map(made, forecasts, job.series, series))


def _by_column(values: list[Any]) -> dict[ColumnName, Any]:
    return dict(zip(COLUMNS, values, strict=True))
