"""Bars without prices, and bars that are not there: refused, filled, or left out."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from kronos_model.bars.calendar.sessions import DAY, SHORTEST_BREAK, bridge_outages, common_spacing
from kronos_model.bars.columns import PRICE_COLUMNS
from kronos_model.bars.timestamps import Timestamps, write_like
from kronos_model.errors import CandleError

Missing = Literal["error", "ffill", "drop"]
"""Bars without prices: refused; filled with the close before, as are bars not there; left out."""
MIN_BARS: Final = 3
"""Fewer bars show no spacing, so none is missing between them."""

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
    def of(cls, columns: Mapping[str, NDArray[np.float64]]) -> "Filled":
        """All rows stay. Those before the first price have its close. A volume or amount of NaN becomes 0.

        Raises CandleError (EMPTY_SERIES) if no bar has prices.
        """
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

    def settled(self, timestamps: Timestamps, how: Missing) -> tuple[Columns, Timestamps, list[str]]:
        """The bars and times to forecast from, and warnings with the number of missing bars.

        With "drop" missing bars are left out. With "ffill" those after the first price stay, and bars that
        are not there are added: see ``bridge_outages``.
        """
        num_gone, num_bars = int(self.is_gone.sum()), len(self.is_gone)
        keep = ~self.is_gone if how == "drop" else np.maximum.accumulate(~self.is_gone)
        num_left_out = int((~keep).sum())
        columns = {name: values[keep] for name, values in self.columns.items()}
        timestamps = replace(
            timestamps,
            texts=tuple(text for text, kept in zip(timestamps.texts, keep, strict=True) if kept),
            wall=timestamps.wall[keep],
            offsets_s=None if timestamps.offsets_s is None else timestamps.offsets_s[keep],
        )
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
        if how == "ffill" and (added := _add_outages(columns, timestamps)) is not None:
            num_added = len(added[1]) - len(timestamps)
            columns, timestamps = added
            text = f"Bars that were not there: {num_added}. They were added with the close before them."
            warnings.append(text)
        return columns, timestamps, warnings


def _add_outages(columns: Columns, timestamps: Timestamps) -> tuple[Columns, Timestamps] | None:
    """The same with the bars that are missing between others of a day; None if there are none."""
    clock = timestamps.instants.astype(np.int64)
    spacing = common_spacing(clock) if len(clock) >= MIN_BARS else DAY
    if spacing >= DAY:
        return None
    instants = bridge_outages(clock, spacing, max(SHORTEST_BREAK, 2 * spacing))
    if len(instants) == len(clock):
        return None
    sources = np.searchsorted(clock, instants, side="right") - 1
    is_new = clock[sources] != instants
    wall = timestamps.wall[sources] + (instants - clock[sources])
    offsets_s = None if timestamps.offsets_s is None else timestamps.offsets_s[sources]
    written = write_like(timestamps.texts[-1], wall, offsets_s)
    texts = tuple(
        new if added else timestamps.texts[source]
        for new, added, source in zip(written, is_new, sources, strict=True)
    )
    return _without_move(columns, sources, is_new), Timestamps(texts, wall, offsets_s)


def _without_move(columns: Columns, sources: NDArray[np.int64], is_new: NDArray[np.bool_]) -> Columns:
    """The bars ``sources``; where ``is_new`` all prices are the close, and volume and amount are 0."""
    close = columns["close"][sources]
    return {
        name: np.where(is_new, close if name in PRICE_COLUMNS else 0.0, values[sources])
        for name, values in columns.items()
    }
