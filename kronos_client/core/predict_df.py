"""LongFrame: a frame with the bars of many series, as items of ``forecast_many``, and their forecasts."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kronos_client.contract.dataframes import our_names, plain_times
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.results import Distribution, PathStatistics, SeriesForecast, long_columns
from kronos_client.core.many import ForecastOutcome
from kronos_client.core.options import DEFAULTS, LongOptions
from kronos_client.core.series import readable
from kronos_model.bars.columns import COLUMNS

if TYPE_CHECKING:
    import pandas as pd

ID_COLUMN: Final[str] = DEFAULTS["id_column"]
TIMESTAMP_COLUMN: Final[str] = DEFAULTS["timestamp_column"]


class LongFrame:
    """The series of a frame, and their forecasts as they come.

    Of a result only the targets are kept. Errors name their series.
    """

    def __init__(self, df: Any, options: LongOptions) -> None:
        import pandas as pd  # apps without long frames do not need it

        given: dict[str, Any] = {**options}
        self._id_column: str = given.pop("id_column", ID_COLUMN)
        self._timestamp_column: str = given.pop("timestamp_column", TIMESTAMP_COLUMN)
        target, on_error = (given.pop(name, DEFAULTS[name]) for name in ("target", "on_error"))
        self._targets = [target] if isinstance(target, str) else list(target)
        self._raises = on_error == "raise"
        # Nobody has the ids of these jobs, unless they begin with the caller's prefix.
        self.sending: Any = {"forget": "job_id_prefix" not in given, **given, "in_order": False}
        if on_error not in ("raise", "skip"):
            text = f"on_error must be 'raise' or 'skip', not {on_error!r}"
            raise JobError(ErrorCode.BAD_VALUE, text, "on_error")
        if not self._targets:
            raise JobError(ErrorCode.BAD_VALUE, "target must name a column or more", "target")
        for name in self._targets:
            if name not in COLUMNS:
                text = f"target {name!r} is none of {', '.join(COLUMNS)}"
                raise JobError(ErrorCode.UNKNOWN_COLUMN, text, "target")
        self._df: pd.DataFrame = df.to_pandas() if hasattr(df, "to_pandas") else df
        if not isinstance(self._df, pd.DataFrame):
            text = f"df must be a DataFrame of pandas or polars, not {type(df).__name__}"
            raise JobError(ErrorCode.BAD_TYPE, text, "df")
        for name in (self._id_column, self._timestamp_column):
            if name not in self._df.columns:
                text = f"the frame has no column {name!r}; it has {', '.join(map(str, self._df.columns))}"
                raise JobError(ErrorCode.MISSING_COLUMN, f"{text}: give id_column and timestamp_column", name)
        empty = self._df[self._id_column].isna().to_numpy()
        if empty.any():
            row = int(empty.argmax())
            text = f"{self._id_column} is empty in row {row}: name the series of each row"
            raise JobError(ErrorCode.BAD_VALUE, text, self._id_column, {"row": row})
        if not len(self._df):
            raise JobError(ErrorCode.EMPTY_SERIES, "the frame has no rows: send some", self._id_column)
        with readable(self._timestamp_column, self._timestamp_column):
            self._df = self._df.assign(
                **{self._timestamp_column: plain_times(self._df[self._timestamp_column])}
            )
        self._parts: dict[int, dict[str, Any]] = {}
        self._errors: dict[Any, str] = {}
        self._warnings: dict[Any, list[str]] = {}

    def items(self) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
        """Each series with its id, its bars in the order of time, and its options."""
        import pandas as pd

        # All series at once: a series may be a single row, and pandas takes long for each call.
        times = self._df[self._timestamp_column]
        with readable(self._timestamp_column, self._timestamp_column):
            instants = pd.to_datetime(times, format="ISO8601", utc=True, errors="coerce")
        codes, names = pd.factorize(self._df[self._id_column])
        order = np.lexsort((instants.to_numpy("datetime64[ns]"), codes))
        columns = self._df.drop(columns=[self._id_column, self._timestamp_column]).iloc[order]
        columns = columns.rename(columns=our_names(columns.columns))
        sorted_times: Any = times.iloc[order]
        if isinstance(times.dtype, pd.DatetimeTZDtype):
            sorted_times = pd.DatetimeIndex(sorted_times)
        elif times.dtype.kind == "M":
            sorted_times = sorted_times.to_numpy()
        ends = np.cumsum(np.bincount(codes))
        parts = {title: _sliceable(column) for title, column in columns.items()}
        is_unique = len(parts) == len(columns.columns)  # else there is an error to raise, perhaps
        for name, first, last in zip(names, (0, *ends[:-1]), ends, strict=True):
            bars: Any = {title: values[first:last] for title, values in parts.items()}
            yield name, bars if is_unique else columns[first:last], {"timestamps": sorted_times[first:last]}

    def take(self, outcome: ForecastOutcome) -> None:
        """Keep a forecast. Raises the JobError of a series that failed, unless such are skipped."""
        if (error := outcome.error) is not None:
            if self._raises:
                text = f"series {outcome.key!r}: {error.message}"
                details = {**error.details, "series": str(outcome.key)}
                raise JobError(error.code, text, error.field, details) from error
            self._errors[outcome.key] = str(error)
            return
        result = outcome.unwrap()
        (series,) = result.series
        titles = (self._id_column, self._timestamp_column)
        columns = long_columns(outcome.key, dict(series), self._targets, titles)
        columns |= {title: [value] * len(columns[titles[0]]) for title, value in _answers(series).items()}
        self._parts[outcome.index] = {
            title: np.asarray(values) if isinstance(values[0], float) else values
            for title, values in columns.items()
        }
        if texts := [text for text in (result.device_warning, *result.all_warnings()) if text]:
            self._warnings[outcome.key] = list(dict.fromkeys(texts))

    def frame(self) -> "pd.DataFrame":
        """All forecasts, in the order of the series. ``attrs`` has ``errors`` and ``warnings`` by series."""
        import pandas as pd

        parts = [self._parts[index] for index in sorted(self._parts)]
        titles = list(parts[0]) if parts else []
        frame = pd.DataFrame({title: np.concatenate([part[title] for part in parts]) for title in titles})
        times = self._df[self._timestamp_column]
        if parts and pd.api.types.is_datetime64_any_dtype(times):
            read = pd.to_datetime(frame[self._timestamp_column], format="ISO8601", utc=True)
            frame[self._timestamp_column] = read.dt.tz_convert(times.dt.tz)
        if parts:
            frame[self._id_column] = frame[self._id_column].astype(self._df[self._id_column].dtype)
        frame.attrs = {"errors": self._errors, "warnings": self._warnings}
        return frame


def _sliceable(column: "pd.Series[Any]") -> Any:
    """The values as an array, of pandas if NumPy has no such type."""
    return column.to_numpy() if isinstance(column.dtype, np.dtype) else column.array


def _answers(series: SeriesForecast) -> dict[str, float]:
    """The chance of each event, and each statistic with its quantiles, by the titles of their columns."""
    found = {chance.event: chance.probability for chance in series.events}
    for name in PathStatistics.model_fields if series.statistics is not None else ():
        one: Distribution | None = getattr(series.statistics, name)
        found[name] = math.nan if one is None else one.mean
        if one is not None:
            found |= {f"{name}_q{level}": value for level, value in one.quantiles.items()}
    return found
