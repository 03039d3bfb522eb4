"""Timestamps of bars: ISO 8601 strings as wall-clock times, their order, and writing them back.

Wall clock means the time as written, whatever its offset; the model's time features come from it and it is
never converted. Instants (wall clock minus offset) serve only for order and spacing.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, tzinfo
from functools import lru_cache
from typing import Any, Final
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from kronos_model.errors import TimestampError

ISO_8601: Final = (
    r"(?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"(?:(?P<minute>[T ][0-9]{2}:[0-9]{2})(?:(?P<second>:[0-9]{2})(?:[.,](?P<fraction>[0-9]{1,9}))?)?"
    r"(?P<offset>Z|[+-][0-9]{2}(?::?[0-9]{2}(?::?[0-9]{2})?)?)?)?"
)
"""The forms of a timestamp, for Python's expressions and for RE2's."""
_ISO_8601: Final = re.compile(ISO_8601)
_DIGITS: Final = bytes.maketrans(b"0123456789", b"0000000000")
_ZONE_NAME: Final = re.compile(r"[A-Za-z0-9_+-]{1,32}(?:/[A-Za-z0-9_+-]{1,32}){0,2}", re.ASCII)
_EXAMPLE: Final = "2024-06-18T09:35:00+08:00"
_DAY_CHARS, _MINUTE_CHARS, _SECOND_CHARS, _MICROSECOND_CHARS = 10, 16, 19, 26
NUM_SHARED_TIMES: Final = 16
"""Times of so many series are kept once they were read: those of a universe mostly share them."""
EPOCH_UNITS: Final[dict[int, Any]] = {9: "s", 10: "s", 13: "ms", 16: "us", 19: "ns"}
"""Of numbers since 1970, by their digits: any time from 1973 to 2286."""
FIRST_TIME: Final = np.datetime64("0001-01-01")
"""Python's earliest date."""
_FIRST_US: Final = int(FIRST_TIME.astype("datetime64[us]").astype(np.int64))


@dataclass(frozen=True, eq=False)
class Timestamps:
    """Parsed timestamps, strictly ascending.

    Attributes:
        texts: as written, (T,).
        wall: the wall clock as written, (T,) datetime64[us].
        offsets_s: seconds east of UTC, (T,) int64; None if the timestamps are naive.
    """

    texts: tuple[str, ...]
    wall: NDArray[np.datetime64]
    offsets_s: NDArray[np.int64] | None

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, rows: slice | NDArray[np.int64]) -> "Timestamps":
        texts = self.texts[rows] if isinstance(rows, slice) else tuple([self.texts[row] for row in rows])
        offsets_s = None if self.offsets_s is None else self.offsets_s[rows]
        return Timestamps(texts, self.wall[rows], offsets_s)

    @property
    def is_aware(self) -> bool:
        """Whether the timestamps carry offsets."""
        return self.offsets_s is not None

    @property
    def clock(self) -> NDArray[np.int64]:
        """The ``instants`` in µs since 1970, (T,). NumPy computes with numbers in half the time."""
        return self.instants.astype(np.int64)

    @property
    def instants(self) -> NDArray[np.datetime64]:
        """(T,) datetime64[us] in UTC; the wall clock itself if the timestamps are naive."""
        return self.wall if self.offsets_s is None else self.wall - self.offsets_s.astype("timedelta64[s]")


def parse_timestamps(
    texts: Sequence[str], *, field: str = "timestamps", zone: tzinfo | None = None
) -> Timestamps:
    """Read ISO 8601 timestamps in the extended form, ``2024-06-18T09:35:00+08:00``.

    The separator is T or one space. Seconds, fractions (kept to the microsecond), the offset (Z included)
    and the whole time of day may be left out. Timestamps must ascend strictly: by instant if they have
    offsets, else by wall clock.

    Args:
        field: name to use in errors.
        zone: if given, each offset must be the one that this zone has at that time.

    Raises TimestampError with the first row at fault and one of the codes BAD_TIMESTAMP, MIXED_TIMEZONES,
    TIMESTAMPS_NOT_ASCENDING, TIMEZONE_MISMATCH.
    """
    stamps = _read_alike(texts) or _read_each(texts, field)
    if zone is not None and stamps.offsets_s is not None:
        _check_offsets(stamps, zone, field)
    _check_order(stamps, field)
    return stamps


def check_continues(lookback: Timestamps, future: Timestamps) -> None:
    """Refuse future timestamps that do not come after the lookback, or are not written like it.

    Raises TimestampError (MIXED_TIMEZONES or TIMESTAMPS_NOT_ASCENDING), its row counted in ``future``.
    """
    field = "future_timestamps"
    if future.is_aware != lookback.is_aware:
        text = f"{field} {'have' if future.is_aware else 'have no'} offsets, but the lookback's timestamps "
        text += f"{'have' if lookback.is_aware else 'do not'}: write both alike"
        raise TimestampError(text, code="MIXED_TIMEZONES", field=field, details={"row": 0})
    if future.instants[0] <= lookback.instants[-1]:
        text = f"{future.texts[0]!r} is not after the last bar, {lookback.texts[-1]!r}"
        raise _at_fault("TIMESTAMPS_NOT_ASCENDING", field, 0, text)


@lru_cache(maxsize=256)
def load_timezone(name: str) -> ZoneInfo:
    """The IANA time zone of that name, such as ``America/New_York``.

    Raises TimestampError (TIMEZONE_UNKNOWN).
    """
    try:
        if _ZONE_NAME.fullmatch(name):
            return ZoneInfo(name)
    except (LookupError, ValueError, OSError):  # OSError: the name is a folder of the zone database
        pass
    text = f"{ascii(name)[:60]} is not an IANA time zone: give a name like America/New_York"
    raise TimestampError(text, code="TIMEZONE_UNKNOWN", field="timezone")


def iana_name(name: str) -> str | None:
    """The name of an IANA zone that is known here; None for any other text, such as ``+08:00``."""
    with suppress(TimestampError):
        return load_timezone(name).key
    return None


def offset_s(wall: datetime, zone: tzinfo) -> int:
    """The zone's seconds east of UTC at a wall-clock time; ``fold`` 1 means the later of a repeated hour."""
    offset = wall.replace(tzinfo=zone).utcoffset()
    assert offset is not None, "a zone has an offset for every time"
    return int(offset.total_seconds())


def write_like(
    example: str, wall: NDArray[np.datetime64], offsets_s: NDArray[np.int64] | None
) -> tuple[str, ...]:
    """Wall-clock times (H,) and their offsets in the form of ``example``.

    Separator, precision and the offset's style are kept. Digits are added only if the times need them. An
    offset that Z cannot express is written ``+08:00``.
    """
    form = _ISO_8601.fullmatch(example)
    if form is None:
        raise ValueError(f"not a timestamp: {example!r}")
    wall = wall.astype("datetime64[us]")
    fraction_us = wall.astype(np.int64) % 10**6
    digits = len(form["fraction"] or "")
    while digits < 6 and np.any(fraction_us % 10 ** (6 - digits)):
        digits += 1
    if digits:
        length = _SECOND_CHARS + 1 + digits
    elif form["second"] or np.any(wall.astype("datetime64[m]") != wall):
        length = _SECOND_CHARS
    elif form["minute"] or np.any(wall.astype("datetime64[D]") != wall):
        length = _MINUTE_CHARS
    else:
        length = _DAY_CHARS
    full: list[str] = np.datetime_as_string(wall).tolist()
    texts = [text[:length].ljust(length, "0") for text in full]
    if (form["minute"] or "").startswith(" "):
        texts = [text.replace("T", " ") for text in texts]
    if offsets_s is not None:
        offsets = offsets_s.tolist()
        ends = {offset: _write_offset(offset, form["offset"] or "") for offset in set(offsets)}
        texts = [text + ends[offset] for text, offset in zip(texts, offsets, strict=True)]
    return tuple(texts)


def write_times(
    wall: NDArray[np.datetime64], instants: NDArray[np.datetime64], is_aware: bool
) -> tuple[str, ...]:
    """Times as ``2024-06-18T09:35:00``, if ``is_aware`` with the offset that lies between the two."""
    if not is_aware:
        return write_like("2024-06-18T09:35:00", wall, None)
    offsets_s = (wall - instants).astype("timedelta64[s]").astype(np.int64)
    return write_like("2024-06-18T09:35:00+08:00", wall, offsets_s)


def _read_alike(texts: Sequence[str]) -> Timestamps | None:
    """Timestamps of one form, at a twentieth of the cost of reading each.

    None if the forms differ in more than digits or any is at fault; ``_read_each`` finds the row.
    """
    try:
        first, data = texts[0], ("\n".join(texts) + "\n").encode("ascii")
        form, line = _ISO_8601.fullmatch(first), data[: len(first) + 1]
        if form is None or b"," in line or data.translate(_DIGITS) != line.translate(_DIGITS) * len(texts):
            return None
        start, strides = form.start("offset") if form["offset"] else len(first), (len(line),)
        clock = np.ndarray(len(texts), f"S{min(start, _MICROSECOND_CHARS)}", data, 0, strides)
        wall = clock.astype("datetime64[us]")  # (T,)
        if wall.astype(np.int64).min() < _FIRST_US:
            return None
        offsets_s = None
        if form["offset"]:
            written = np.ndarray(len(texts), f"S{len(first) - start}", data, start, strides)
            if (written == written[0]).all():
                written = written[:1]
            offsets = [first[:start] + offset.decode() for offset in written.tolist()]
            seconds = {offset: _offset_of(offset) for offset in set(offsets)}
            found = np.array([seconds[offset] for offset in offsets], dtype=np.int64)
            offsets_s = np.broadcast_to(found, len(texts))
    except (IndexError, TypeError, ValueError):  # none at all, not such strings, or digits that are no date
        return None
    return Timestamps(tuple(texts), wall, offsets_s)


def _offset_of(text: str) -> int | None:
    """Seconds east of UTC, as written."""
    offset = datetime.fromisoformat(text).utcoffset()
    return None if offset is None else int(offset.total_seconds())


def _read_each(texts: Sequence[str], field: str) -> Timestamps:
    parsed = [_parse(text, row, field) for row, text in enumerate(texts)]
    # numpy reads text several times faster than it converts datetime objects.
    wall = np.array([clock for clock, _ in parsed], dtype="datetime64[us]")  # (T,)
    offsets = [offset for _, offset in parsed]
    is_aware = bool(offsets) and offsets[0] is not None
    for row, offset in enumerate(offsets):
        if (offset is not None) != is_aware:
            text = f"{texts[row]!r} has {'no' if is_aware else 'an'} offset, but row 0 has "
            text += f"{'one' if is_aware else 'none'}: write all timestamps of a job's series alike"
            raise _at_fault("MIXED_TIMEZONES", field, row, text)
    return Timestamps(tuple(texts), wall, np.array(offsets, dtype=np.int64) if is_aware else None)


def _parse(text: str, row: int, field: str) -> tuple[str, int | None]:
    """The wall clock as text that numpy reads, and the offset in seconds."""
    try:
        form = _ISO_8601.fullmatch(text)
        if form is not None:
            offset = _offset_of(text)
            end = form.start("offset") if offset is not None else len(text)
            return text[: min(end, _MICROSECOND_CHARS)].replace(",", "."), offset
    except (TypeError, ValueError):  # not a string; or the digits fit, but there is no such date or time
        pass
    reason = f"{ascii(text)[:60]} is not an ISO 8601 timestamp: write it like {_EXAMPLE}"
    raise _at_fault("BAD_TIMESTAMP", field, row, reason)


def _check_order(stamps: Timestamps, field: str) -> None:
    clock = stamps.clock
    late = clock[1:] <= clock[:-1]
    if np.count_nonzero(late):
        row = int(np.argmax(late)) + 1
        text = f"{stamps.texts[row]!r} is not after {stamps.texts[row - 1]!r}: sort the bars, drop repeated "
        text += "ones, and add offsets if an hour repeats as clocks go back"
        raise _at_fault("TIMESTAMPS_NOT_ASCENDING", field, row, text)


def _check_offsets(stamps: Timestamps, zone: tzinfo, field: str) -> None:
    assert stamps.offsets_s is not None
    written, weeks = stamps.offsets_s, stamps.wall.astype("datetime64[W]").astype(np.int64)
    # No clock changes twice within a week: the ends of each week and of equal offsets within it are enough.
    ends = np.append((written[1:] != written[:-1]) | (weeks[1:] != weeks[:-1]), True)
    rows = np.flatnonzero(ends | np.append(True, ends[:-1]))
    if all(_has_offset(stamps, row, zone) for row in rows.tolist()):
        return
    row = next(row for row in range(len(stamps)) if not _has_offset(stamps, row, zone))
    text = f"{stamps.texts[row]!r} does not have {zone}'s offset: the time features are taken from the "
    text += "clock as written, so write the timestamps in that zone or leave 'timezone' out"
    raise _at_fault("TIMEZONE_MISMATCH", field, row, text)


def _has_offset(stamps: Timestamps, row: int, zone: tzinfo) -> bool:
    assert stamps.offsets_s is not None
    time, written = stamps.wall[row].item(), int(stamps.offsets_s[row])
    return written in (offset_s(time, zone), offset_s(time.replace(fold=1), zone))


def _at_fault(code: str, field: str, row: int, text: str) -> TimestampError:
    return TimestampError(f"{field}, row {row}: {text}", code=code, field=field, details={"row": row})


@lru_cache(maxsize=256)
def _write_offset(offset_s: int, like: str) -> str:
    if like == "Z" and offset_s == 0:
        return "Z"
    minutes, seconds = divmod(abs(offset_s), 60)
    hours, minutes = divmod(minutes, 60)
    colon = "" if len(like) in (5, 7) and ":" not in like else ":"
    text = f"{'-' if offset_s < 0 else '+'}{hours:02}"
    if minutes or seconds or len(like) != 3:
        text += f"{colon}{minutes:02}"
    return text + (f"{colon}{seconds:02}" if seconds else "")
