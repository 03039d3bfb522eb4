"""Offsets without a zone: a warning if the clock of a zone with that offset changes within the forecast."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from kronos_model.bars.calendar.spacing import SECOND, offset_at
from kronos_model.bars.timestamps import Timestamps, load_timezone

CHANGING: Final = (
    "America/New_York", "Europe/Berlin", "Europe/London", "America/Chicago", "Australia/Sydney",
    "Europe/Athens", "America/Los_Angeles", "America/Denver", "America/Halifax", "America/Santiago",
    "Pacific/Auckland", "Asia/Jerusalem", "Africa/Cairo", "Africa/Casablanca", "America/Sao_Paulo",
    "Europe/Istanbul", "Europe/Moscow", "Asia/Tehran", "America/Mexico_City", "America/Asuncion",
    "Australia/Adelaide", "America/St_Johns", "America/Anchorage", "America/Adak", "America/Havana",
    "America/Miquelon", "America/Nuuk", "Atlantic/Azores", "Asia/Beirut", "Asia/Gaza", "Pacific/Easter",
    "Pacific/Norfolk", "Pacific/Chatham", "Australia/Lord_Howe", "Antarctica/Troll",
)  # fmt: skip
"""Zones whose clocks change, markets first; one or more for each offset."""
LAST_S: Final = 2**33
"""In the year 2242. No rule of clocks is reliable that far ahead."""
WEEK_S: Final = 7 * 86_400
"""No clock changes twice within it."""
NUM_LARGE: Final = 2
"""Of ``CHANGING``, those of the largest markets."""
DAY_S: Final = 86_400
NUM_COMPARED: Final = 12
"""Bars of the lookback whose offsets a zone must have had."""


def offset_warning(lookback: Timestamps, future: Timestamps) -> str | None:
    """A warning if bars ahead, which have the last bar's offset, may have another one.

    Times in UTC (Z) may be those of any market: two large ones stand for it. Bars around the clock have none.
    """
    if lookback.offsets_s is None:
        return None
    is_utc = lookback.texts[-1].endswith("Z")
    rows = np.linspace(0, len(lookback) - 1, NUM_COMPARED).astype(np.int64)[::-1]
    seconds, ahead = lookback.clock // SECOND, future.clock // SECOND
    past = [*zip(seconds[rows].tolist(), lookback.offsets_s[rows].tolist(), strict=True)]
    if seconds[0] < 0 or ahead[-1] > LAST_S or (is_utc and not _pause_each_day(seconds)):
        return None
    some = ahead[np.append(np.unique((ahead - ahead[0]) // WEEK_S, return_index=True)[1], -1)].tolist()
    for name in CHANGING[: NUM_LARGE if is_utc else None]:
        zone = load_timezone(name)
        offset = offset_at(int(seconds[-1]), zone)
        is_possible = is_utc or all(offset_at(at, zone) == written for at, written in past)
        if is_possible and any(offset_at(at, zone) != offset for at in some):
            row = next(row for row, at in enumerate(ahead.tolist()) if offset_at(at, zone) != offset)
            why = "The bars pause each day, and their times keep the offset of UTC"
            text = why if is_utc else "The forecast's times keep the last bar's offset"
            text += f", but from {future.texts[row]} on the clock of {name} has another one"
            return f"{text}: give timezone, if the bars are on such a clock."
    return None


def _pause_each_day(seconds: NDArray[np.int64]) -> bool:
    """Whether steps are longer than usual as often as if it were once a day."""
    steps = np.diff(seconds)
    if not len(steps):
        return False
    usual = np.median(steps)
    return bool(np.mean(steps > 2 * usual) >= usual / DAY_S)
