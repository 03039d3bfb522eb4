"""Offsets without a zone: a warning if the clock of a zone with that offset changes within the forecast."""

from typing import Final

import numpy as np

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
DAY_S: Final = 86_400
NUM_COMPARED: Final = 12
"""Bars of the lookback whose offsets a zone must have had."""


def offset_warning(lookback: Timestamps, future: Timestamps) -> str | None:
    """A warning if bars ahead, which have the last bar's offset, may have another one. Z means UTC."""
    if lookback.offsets_s is None:
        return None
    if lookback.texts[-1].endswith("Z"):
        return _utc_warning(lookback, future)
    rows = np.linspace(0, len(lookback) - 1, NUM_COMPARED).astype(np.int64)[::-1]
    seconds, offset = lookback.clock // SECOND, int(lookback.offsets_s[-1])
    past = [*zip(seconds[rows].tolist(), lookback.offsets_s[rows].tolist(), strict=True)]
    ahead = future.clock // SECOND
    if seconds[0] < 0 or ahead[-1] > LAST_S:
        return None
    some = ahead[np.append(np.unique((ahead - ahead[0]) // WEEK_S, return_index=True)[1], -1)].tolist()
    for name in CHANGING:
        zone = load_timezone(name)
        is_possible = all(offset_at(at, zone) == written for at, written in past)
        if is_possible and any(offset_at(at, zone) != offset for at in some):
            row = next(row for row, at in enumerate(ahead.tolist()) if offset_at(at, zone) != offset)
            text = (
                f"The forecast's times keep the last bar's offset, but from {future.texts[row]} on the clock"
            )
            return f"{text} of {name} has another one: give timezone, if the bars are on such a clock."
    return None


def _utc_warning(lookback: Timestamps, future: Timestamps) -> str | None:
    """A warning if bars pause each day, and clocks of large markets change before the last one ahead."""
    seconds, ahead = lookback.clock // SECOND, future.clock // SECOND
    steps = np.diff(seconds)
    if not len(steps) or seconds[0] < 0 or ahead[-1] > LAST_S:
        return None
    usual = np.median(steps)
    if np.mean(steps > 2 * usual) < usual / DAY_S:
        return None
    for name in CHANGING[:2]:
        zone = load_timezone(name)
        before = offset_at(int(seconds[-1]), zone)
        if offset_at(int(ahead[-1]), zone) != before:
            row = next(row for row, at in enumerate(ahead.tolist()) if offset_at(at, zone) != before)
            return (
                f"The bars pause each day and their times are in UTC, but from {future.texts[row]} on the "
                f"clock of {name} has another offset: give timezone or calendar, if the sessions follow it."
            )
    return None
