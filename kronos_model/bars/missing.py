"""Bars without prices, and bars that are not there: refused, filled, or left out."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import tzinfo
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kronos_model.bars.calendar.sessions import DAY, SHORTEST_BREAK, bridge_outages, common_spacing
from kronos_model.bars.calendar.spacing import MIN_BARS, SECOND, offset_at
from kronos_model.bars.columns import PRICE_COLUMNS, Instrument, as_columns, check_shape
from kronos_model.bars.timestamps import Timestamps, write_like
from kronos_model.errors import CandleError

Missing = Literal["error", "ffill", "drop"]
"""Bars without prices: refused; filled with the close before, as are bars not there; left out."""

Columns = dict[str, NDArray[np.float64]]


def is_missing(columns: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """Bars without prices, (T,): one is NaN, or zero in a bar without volume, as some vendors write it."""
    prices = np.stack([columns[name] for name in PRICE_COLUMNS])
    is_gone = np.isnan(prices).any(axis=0)
    if "volume" in columns:
        is_gone |= (prices == 0).any(axis=0) & ~(columns["volume"] > 0)
    return np.asarray(is_gone)


@dataclass(frozen=True, eq=False)
class Filled:
    """Columns whose missing bars, ``is_gone``, have the close before them and no volume.

    ``num_without_volume`` counts the other bars in which a volume or amount was NaN, and is now 0.
    """

    columns: Columns
    is_gone: NDArray[np.bool_]
    num_without_volume: int = 0

    @classmethod
    def from_columns(cls, columns: Mapping[str, NDArray[np.float64]], how: Missing) -> "Filled":
        """All rows stay. Those before the first price have its close. A volume or amount of NaN becomes 0.

        With "error" nothing is filled, and no bar counts as missing.

        Raises CandleError as ``check_shape``, and EMPTY_SERIES if no bar has prices.
        """
        if how == "error":
            return cls(dict(columns), np.zeros(len(columns["open"]), dtype=bool))
        check_shape(columns)
        is_gone = is_missing(columns)
        if is_gone.all():
            text = "no bar of the series has prices: send some"
            raise CandleError(text, code="EMPTY_SERIES", field=PRICE_COLUMNS[0])
        rows = np.arange(len(is_gone))
        sources = np.maximum.accumulate(np.where(is_gone, int(np.argmin(is_gone)), rows))
        filled = {
            name: values if name in PRICE_COLUMNS else np.where(np.isnan(values), 0.0, values)
            for name, values in columns.items()
        }
        others = [np.isnan(values) for name, values in columns.items() if name not in PRICE_COLUMNS]
        is_unknown = np.any(others, axis=0) & ~is_gone if others else is_gone[:0]
        return cls(_without_move(filled, sources, is_gone), is_gone, int(is_unknown.sum()))

    def settled(
        self, timestamps: Timestamps, how: Missing, zone: tzinfo | None = None
    ) -> tuple[Columns, Timestamps, list[str]]:
        """The bars and times to forecast from, and warnings with the number of missing bars.

        With "drop" missing bars are left out. With "ffill" those after the first price stay, and bars that
        are not there are added, on the zone's clock: see ``bridge_outages``. With "error" these are counted.
        """
        num_gone, num_bars = int(np.count_nonzero(self.is_gone)), len(self.is_gone)
        columns, num_left_out = self.columns, 0
        if num_gone:
            keep = ~self.is_gone if how == "drop" else np.maximum.accumulate(~self.is_gone)
            num_left_out = int(np.count_nonzero(~keep))
            columns = {name: values[keep] for name, values in columns.items()}
            timestamps = timestamps[np.flatnonzero(keep)]
        warnings = []
        if num_filled := num_gone - num_left_out:
            warnings.append(
                f"Without prices: {num_filled} of {num_bars} bars. They have the close before them."
            )
        if num_left_out:
            warnings.append(f"Without prices: {num_left_out} of {num_bars} bars. They are left out.")
        if self.num_without_volume:
            text = (
                f"Without volume or amount: {self.num_without_volume} of {num_bars} bars. It is taken as 0."
            )
            warnings.append(text)
        clock = timestamps.clock
        instants = clock if how == "drop" else _without_outages(clock, timestamps.wall)
        if num_absent := len(instants) - len(clock):
            if how == "ffill":
                columns, timestamps = _add_outages(columns, timestamps, instants, zone)
                text = f"Bars that were not there: {num_absent}. They were added with the close before them."
            else:
                first = timestamps.texts[int(np.argmax(instants[: len(clock)] != clock)) - 1]
                text = (
                    f"Bars that are not there: {num_absent}, the first after {first}. Those around them are "
                    'read as neighbours; missing "ffill" adds them.'
                )
            warnings.append(text)
        return columns, timestamps, warnings


def filled_instrument(instrument: Instrument) -> tuple[Instrument, int]:
    """An instrument whose missing bars, which are NaN, and bars that are not there have the close before.

    Bars before the first price are left out. Also returns how many bars were filled or added.
    """
    is_gone = np.asarray(np.isnan(instrument.bars).any(axis=1))
    sources = np.maximum.accumulate(np.where(is_gone, -1, np.arange(len(is_gone))))
    kept = sources >= 0
    clock = instrument.instants[kept].astype("datetime64[us]").astype(np.int64)
    instants = _without_outages(clock, instrument.wall[kept])
    before = np.searchsorted(clock, instants, side="right") - 1
    ahead = instants - clock[before]
    is_new = is_gone[kept][before] | (ahead > 0)
    columns = _without_move(as_columns(instrument.bars), sources[kept][before], is_new)
    wall, was = (
        each[kept][before] + ahead.astype("timedelta64[us]")
        for each in (instrument.wall, instrument.instants)
    )
    bars = np.stack([*columns.values()], axis=-1).astype(np.float32)
    filled = replace(
        instrument, bars=bars, wall=wall.astype("datetime64[s]"), instants=was.astype("datetime64[s]")
    )
    return filled, int(is_new.sum())


def _without_outages(clock: NDArray[np.int64], wall: NDArray[np.datetime64]) -> NDArray[np.int64]:
    """Bar times (µs) with those that are missing between others of a day."""
    spacing = common_spacing(clock) if len(clock) >= MIN_BARS else DAY
    if spacing >= DAY:
        return clock
    local = wall.astype("datetime64[us]").astype(np.int64)
    return bridge_outages(clock, spacing, max(SHORTEST_BREAK, 2 * spacing), local)


def _add_outages(
    columns: Columns, timestamps: Timestamps, instants: NDArray[np.int64], zone: tzinfo | None
) -> tuple[Columns, Timestamps]:
    """The same with bars at all ``instants``."""
    clock = timestamps.clock
    sources = np.searchsorted(clock, instants, side="right") - 1
    ahead = instants - clock[sources]
    before = timestamps[sources]
    wall, offsets_s = before.wall + ahead, before.offsets_s
    if zone is not None and offsets_s is not None:
        offsets_s = np.array([offset_at(at, zone) for at in (instants // SECOND).tolist()])
        wall = (instants + offsets_s * SECOND).astype("datetime64[us]")
    written = write_like(timestamps.texts[-1], wall, offsets_s)
    texts = tuple(new if added else old for new, added, old in zip(written, ahead, before.texts, strict=True))
    return _without_move(columns, sources, ahead > 0), Timestamps(texts, wall, offsets_s)


def _without_move(columns: Columns, sources: NDArray[np.int64], is_new: NDArray[np.bool_]) -> Columns:
    """The bars ``sources``; where ``is_new`` all prices are the close, and volume and amount are 0."""
    close = columns["close"][sources]
    return {
        name: np.where(is_new, close if name in PRICE_COLUMNS else 0.0, values[sources])
        for name, values in columns.items()
    }
