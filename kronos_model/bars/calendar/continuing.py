"""Timestamps after a lookback, written like its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import count
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kronos_model.bars.calendar.sessions import DAY
from kronos_model.bars.timestamps import Timestamps, offset_s, write_like

SECOND: Final = DAY // 86_400
LAST_TIME: Final = int(np.datetime64("9999-12-31T23:59:59.999999").astype(np.int64))


@dataclass(frozen=True)
class Inferred:
    """Future timestamps, written like the lookback's.

    Attributes:
        rule: how they were found, in words.
        warning: set if they rest on an assumption that may be wrong.
    """

    timestamps: Timestamps
    rule: str
    warning: str | None = None


def instants_of(lookback: Timestamps, zone: tzinfo | None) -> NDArray[np.int64]:
    """µs since 1970 in UTC; of the wall clock if there are neither offsets nor a zone."""
    if zone is None or lookback.is_aware:
        return lookback.clock
    times: list[datetime] = lookback.wall.tolist()
    offsets_us = np.array([offset_s(at, zone) for at in times], dtype=np.int64) * SECOND
    return np.asarray(lookback.wall.astype(np.int64) - offsets_us)


def at_walls(lookback: Timestamps, times: NDArray[np.int64], zone: tzinfo | None) -> Timestamps:
    """At these wall-clock times (µs since 1970), with the zone's offsets or the lookback's last one."""
    if lookback.offsets_s is None or zone is None:
        return _written(lookback, times)
    newest = int(lookback.clock[-1])
    offsets_s = []
    for at in times.tolist():
        wall = to_datetime(at)
        offset = offset_s(wall, zone)
        if at - offset * SECOND <= newest:  # the second of two hours as clocks go back
            offset = offset_s(wall.replace(fold=1), zone)
        newest = at - offset * SECOND
        offsets_s.append(offset)
    return _written(lookback, times, offsets_s)


def at_spacing(
    lookback: Timestamps, last: int, spacing: int, num_bars: int, zone: tzinfo | None
) -> Timestamps:
    """Constant spacing by instant, without a break, after ``last``, an instant of ``instants_of``.

    Hours that daylight saving skips are skipped; an hour that repeats appears twice if bars have offsets.
    """
    if last + spacing * num_bars > LAST_TIME:
        raise OverflowError
    if zone is None:
        newest = int(lookback.wall[-1].astype(np.int64))
        return _written(lookback, newest + np.arange(1, num_bars + 1) * spacing)
    walls, offsets_s = [lookback.wall[-1].item()], []
    for at in count(last + spacing, spacing):
        local = to_datetime(at).replace(tzinfo=UTC).astimezone(zone)
        wall = local.replace(tzinfo=None)
        if lookback.is_aware or wall > walls[-1]:
            walls.append(wall)
            offsets_s.append(offset_s(local, zone))
        if len(offsets_s) == num_bars:
            break
    times = np.array(walls[1:], dtype="datetime64[us]").astype(np.int64)
    return _written(lookback, times, offsets_s)


def at_instants(lookback: Timestamps, instants: NDArray[np.int64], zone: tzinfo) -> Timestamps:
    """At these instants (µs since 1970 in UTC), on the zone's clock."""
    local = [to_datetime(at).replace(tzinfo=UTC).astimezone(zone) for at in instants.tolist()]
    wall = np.array([at.replace(tzinfo=None) for at in local], dtype="datetime64[us]").astype(np.int64)
    return _written(lookback, wall, [offset_s(at.replace(tzinfo=None), zone) for at in local])


def _written(
    lookback: Timestamps, times: NDArray[np.int64], offsets_s: Sequence[int] | None = None
) -> Timestamps:
    """Like the lookback's: its last offset, if it has offsets and none are given."""
    if times[-1] > LAST_TIME:
        raise OverflowError
    wall = times.astype("datetime64[us]")
    offsets = None
    if lookback.offsets_s is not None:
        offsets = np.full(len(wall), lookback.offsets_s[-1] if offsets_s is None else offsets_s)
    return Timestamps(write_like(lookback.texts[-1], wall, offsets), wall, offsets)


def to_datetime(at: int) -> datetime:
    """A naive datetime from µs since 1970."""
    return datetime(1970, 1, 1) + timedelta(microseconds=at)
