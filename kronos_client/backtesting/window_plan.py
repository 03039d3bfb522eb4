"""What a backtest forecasts: windows of instruments, cut into jobs, the same ones each time."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, date, datetime
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from kronos_client.contract.backtest import BacktestJob, check_models
from kronos_client.contract.errors import ErrorCode, JobError, refusal
from kronos_model.bars.columns import Instrument
from kronos_model.bars.timestamps import write_times
from kronos_model.evaluation.windows import Windows, WindowTimes, spread, window_times

WINDOWS_PER_JOB: Final = 4
"""Enough to share a job's overhead; few enough to lose little when a run is stopped."""
DEFAULT_WINDOWS: Final = 40
MIN_LOOKBACK: Final = 2


@dataclass(frozen=True)
class BacktestOptions:
    """What is asked of a backtest.

    Attributes:
        windows: The most windows of each instrument, evenly spread, or with a stride the last ones.
        stride: Bars from one window's forecast to the next one's, counted back from the last bar.
        lookback: Bars that the models read.
        horizon: Bars to forecast.
        samples: Paths of each forecast.
        seed: Of all sampling.
        start, end: Only windows whose forecast bars lie between these times, as the files write them, or,
            if they have a zone, as instants; a day is its midnight.
        models: Names as jobs have them; None is the workers' own.
        top: Instruments on each side of the portfolio that the report follows, if they are several.
        cost_bps: Costs of its trades, in hundredths of a per cent of what is bought or sold.
    """

    lookback: int
    windows: int | None = None
    stride: int | None = None
    horizon: int = 24
    samples: int = 30
    seed: int = 0
    start: date | None = None
    end: date | None = None
    models: tuple[str | None, ...] = (None,)
    top: int = 5
    cost_bps: float = 10.0

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        times = {name: time and time.isoformat() for name, time in self.times.items()}
        return asdict(self) | times | {"models": list(self.models)}

    @property
    def times(self) -> dict[str, date | None]:
        """``start`` and ``end``."""
        return {"start": self.start, "end": self.end}


@dataclass(frozen=True, eq=False)
class BacktestPlan:
    """The windows of a backtest, numbered by instrument and time.

    Attributes:
        skipped: Files that cannot be used, and why.
        remarks: What a reader of the report must know about the candles.

    Raises:
        JobError: An option cannot be used, or no instrument is long enough.
    """

    instruments: Sequence[Instrument]
    options: BacktestOptions
    skipped: Mapping[str, str] = field(default_factory=dict)
    remarks: Sequence[str] = ()

    def __post_init__(self) -> None:
        options = self.options
        for name, time in options.times.items():
            if time is None:
                continue
            if not isinstance(time, date) or time != time:  # NaT
                raise _refusal(name, f"must be a date or datetime, not {time!r}", ErrorCode.BAD_TYPE)
            if _is_aware(time) and not all(instrument.is_aware for instrument in self.instruments):
                remedy = "give a time as the candles write it"
                raise _refusal(name, f"has a time zone, and the candles have none: {remedy}")
        check_models(options.models)
        as_job = options.as_dict() | {"models": [None], "data": {"path": "candles.csv"}}
        try:
            BacktestJob.model_validate(as_job)
        except ValidationError as error:
            raise refusal(error) from None
        if options.lookback < MIN_LOOKBACK:
            raise _refusal("lookback", f"must be at least {MIN_LOOKBACK}, not {options.lookback}")
        if not len(self.windows):
            longest = max(self.instruments, key=len, default=None)
            has = f"the longest instrument has {len(longest or ())}"
            if longest and any(options.times.values()):
                within = "; the bars to forecast lie between the times that were asked for"
                has += f", from {longest.wall[0]} to {longest.wall[-1]}{within}"
            raise JobError(
                ErrorCode.INVALID_INPUT,
                f"no window fits: a lookback of {options.lookback} and a horizon of {options.horizon} need "
                f"{self._num_bars} bars, and {has}",
                "lookback",
            )

    @property
    def _num_bars(self) -> int:
        """Bars of a window."""
        return self.options.lookback + self.options.horizon

    @cached_property
    def windows(self) -> Windows:
        """The windows by instrument and first bar of the lookback."""
        cuts = [self._cuts(instrument) for instrument in self.instruments]
        index = np.repeat(np.arange(len(cuts), dtype=np.int32), [len(each) for each in cuts])
        return Windows(index, np.concatenate([np.empty(0, np.int64), *cuts]) - self.options.lookback)

    def _cuts(self, instrument: Instrument) -> NDArray[np.int64]:
        """Positions of the first bars to forecast, ascending."""
        options = self.options
        cuts = np.arange(options.lookback, len(instrument) - options.horizon + 1)
        if options.start is not None:
            clock, start = _on_clock(instrument, options.start)
            cuts = cuts[clock[cuts] >= start]
        if options.end is not None:
            clock, end = _on_clock(instrument, options.end)
            cuts = cuts[clock[cuts + options.horizon - 1] <= end]
        if options.stride is not None:
            return cuts[::-1][:: options.stride][: options.windows][::-1]
        every = Windows(np.zeros(len(cuts), np.int32), cuts)
        return spread(every, options.windows or DEFAULT_WINDOWS).start

    @cached_property
    def times(self) -> WindowTimes:
        """When the windows' forecasts begin."""
        return window_times(self.instruments, self.windows, self.options.lookback, self.options.horizon)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the options of the forecasts and of all bars that are read."""
        # Options of the portfolio change no forecast.
        asked = {
            key: value for key, value in self.options.as_dict().items() if key not in ("top", "cost_bps")
        }
        digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode())
        for instrument in self.instruments:
            digest.update(f"\n{instrument.name}\n".encode())
            digest.update(np.ascontiguousarray(instrument.bars, dtype="<f4").tobytes())
            digest.update(instrument.wall.astype("<i8").tobytes())
            digest.update(instrument.instants.astype("<i8").tobytes())
        return digest.hexdigest()

    def jobs(self) -> list[range]:
        """The windows of each job."""
        windows = range(len(self.windows))
        return [windows[first : first + WINDOWS_PER_JOB] for first in windows[::WINDOWS_PER_JOB]]

    def window(self, number: int) -> Instrument:
        """The bars of a window, lookback first, with their instrument's name."""
        instrument = self.instruments[int(self.windows.instrument_index[number])]
        first = int(self.windows.start[number])
        rows = slice(first, first + self._num_bars)
        arrays = {name: getattr(instrument, name)[rows] for name in ("bars", "wall", "instants")}
        return replace(instrument, **arrays)

    def describe_instruments(self) -> list[dict[str, Any]]:
        """Each instrument's name, bars, times and number of windows."""
        counts = np.bincount(self.windows.instrument_index, minlength=len(self.instruments)).tolist()
        described = []
        for instrument, count in zip(self.instruments, counts, strict=True):
            ends = instrument.wall[[0, -1]], instrument.instants[[0, -1]]
            first, last = write_times(*ends, instrument.is_aware)
            about = {"name": instrument.name, "bars": len(instrument), "first": first, "last": last}
            described.append(about | {"windows": count})
        return described


def _refusal(name: str, why: str, code: ErrorCode = ErrorCode.BAD_VALUE) -> JobError:
    return JobError(code, f"{name} {why}", name)


def _is_aware(time: date) -> bool:
    return isinstance(time, datetime) and time.utcoffset() is not None


def _on_clock(instrument: Instrument, time: date) -> tuple[NDArray[np.datetime64], np.datetime64]:
    """An instrument's times and a bound, both as instants if the bound has a zone, else by the wall clock."""
    if isinstance(time, datetime) and _is_aware(time):
        return instrument.instants, np.datetime64(time.astimezone(UTC).replace(tzinfo=None), "s")
    return instrument.wall, np.datetime64(time, "s")
