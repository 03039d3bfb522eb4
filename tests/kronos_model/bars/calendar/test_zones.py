"""Inferred times on the clock of any zone of the database, 1972 to 2037, around a change of it."""

from bisect import bisect_left
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from kronos_model.bars.calendar.named_calendar import follow_calendar
from kronos_model.bars.calendar.offsets import offset_warning
from kronos_model.bars.calendar.spacing import infer_future
from kronos_model.bars.timestamps import check_continues, load_timezone, parse_timestamps

ZONES = sorted(available_timezones() - {"localtime", "Factory"})
HOUR_S, DAY_S = 3600, 86_400
MINUTES = st.sampled_from([5, 15, 20, 30, 60, 120, 240])
AROUND = st.integers(-30, 30)
AROUND_MIDNIGHT = st.sampled_from([46, 47, 0, 1])
"""Half hours of the day: some clocks change from 23:00 to midnight, or from midnight to 1:00."""


def local(at: int, zone: ZoneInfo) -> datetime:
    """The zone's clock at an instant in seconds since 1970."""
    return datetime.fromtimestamp(at, zone)


@cache
def changes_of(name: str, year: int) -> list[int]:
    """The instants at which the zone's clock changes in a year, in seconds since 1970."""
    zone = load_timezone(name)
    first = int(datetime(year, 1, 1, tzinfo=UTC).timestamp())
    steps = range(first, first + 366 * DAY_S, DAY_S)
    offset = {at: local(at, zone).utcoffset() for at in steps}
    return [
        low
        + bisect_left(
            range(low, high), True, key=lambda at, was=offset[low]: local(at, zone).utcoffset() != was
        )
        for low, high in pairwise(steps)
        if offset[low] != offset[high]
    ]


@st.composite
def changes(draw: st.DrawFn) -> tuple[str, int]:
    """A zone, and an instant at which its clock changes; another instant in years without one."""
    name, year = draw(st.sampled_from(ZONES)), draw(st.integers(1972, 2037))
    first = int(datetime(year, 3, 1, tzinfo=UTC).timestamp())
    return name, draw(st.sampled_from(changes_of(name, year) or [first]))


def instants_of(wall: datetime, zone: ZoneInfo) -> tuple[int, int]:
    """The first and last instant of a wall-clock time; if the clock skips it, the instant of the change."""
    found = sorted({int(wall.replace(tzinfo=zone, fold=fold).timestamp()) for fold in (0, 1)})
    if local(found[0], zone).replace(tzinfo=None) == wall:
        return found[0], found[-1]
    change = found[0] + bisect_left(
        range(*found), True, key=lambda at: local(at, zone).replace(tzinfo=None) > wall
    )
    return change, change


def has_day(day: date, zone: ZoneInfo) -> bool:
    """Not if the zone skips the whole day, as it crosses the date line."""
    ends = (instants_of(datetime.combine(day, clock), zone)[0] for clock in (time(0), time(23, 59, 59)))
    return any(local(end, zone).date() == day for end in ends)


def written(instants: list[int], zone: ZoneInfo, *, is_aware: bool = True) -> list[str]:
    """As texts; naive ones without what the clock shows again."""
    texts: list[str] = []
    for at in instants:
        text = local(at, zone).isoformat()
        if is_aware or not texts or text[:19] > texts[-1]:
            texts.append(text if is_aware else text[:19])
    return texts


def cut_after(
    num_past: int, bars: list[int], zone: ZoneInfo, *, is_aware: bool
) -> tuple[list[str], list[str]]:
    """The lookback and the future as texts. Naive ones cannot show a bar of only the second of two hours."""
    clocks = [local(at, zone) for at in bars]
    again = {clock.replace(fold=0, tzinfo=None) for clock in clocks if clock.fold}
    assume(is_aware or again <= {clock.replace(tzinfo=None) for clock in clocks if not clock.fold})
    texts, num_texts = (
        written(bars, zone, is_aware=is_aware),
        len(written(bars[:num_past], zone, is_aware=is_aware)),
    )
    return texts[:num_texts], texts[num_texts:]


def inferred(lookback: list[str], num_bars: int, zone: ZoneInfo, calendar: str | None = None) -> list[str]:
    stamps = parse_timestamps(lookback, zone=zone)
    if calendar is None:
        future = infer_future(stamps, num_bars, zone).timestamps
    else:
        future = follow_calendar(calendar, stamps, num_bars, zone).timestamps
    check_continues(stamps, future)
    assert parse_timestamps(future.texts, zone=zone).texts == future.texts
    return list(future.texts)


@settings(deadline=None, max_examples=100)
@given(
    changes(), MINUTES, AROUND, st.integers(0, DAY_S // 60), st.sampled_from([None, "24/7"]), st.booleans()
)
@example(("Australia/Lord_Howe", 1712415600), 60, -3, 0, None, True)
@example(("Africa/Monrovia", 63593070), 15, -3, 0, None, True)
def test_bars_without_breaks_follow_each_other_in_real_time(
    change: tuple[str, int], minutes: int, ahead: int, phase: int, calendar: str | None, is_aware: bool
) -> None:
    name, at = change
    zone, spacing = load_timezone(name), 60 * minutes
    bars = [at + 60 * phase + spacing * (ahead + bar) for bar in range(-500, 60)]
    past, future = cut_after(500, bars, zone, is_aware=is_aware)

    assert inferred(past, 20, zone, calendar) == future[:20]


@settings(deadline=None, max_examples=100)
@given(
    changes(),
    AROUND_MIDNIGHT | st.integers(0, 47),
    st.integers(-10, 5),
    st.sampled_from([None, "24/7"]),
    st.booleans(),
)
@example(("America/Sao_Paulo", 1508641200), 0, -3, None, True)
@example(("Pacific/Apia", 1325239200), 0, -3, None, True)
@example(("Pacific/Apia", 1325239200), 19, -3, None, False)
@example(("America/Nuuk", 1711846800), 47, -3, None, True)
@example(("America/Nuuk", 1711846800), 47, 0, None, True)
@example(("America/Nuuk", 1711846800), 46, 0, "24/7", False)
def test_daily_bars_stay_at_their_local_time(
    change: tuple[str, int], half_hours: int, ahead: int, calendar: str | None, is_aware: bool
) -> None:
    name, at = change
    zone, clock = load_timezone(name), time(half_hours // 2, 30 * (half_hours % 2))
    first = local(at, zone).date() + timedelta(days=ahead - 40)
    days = [day for ahead in range(60) if has_day(day := first + timedelta(days=ahead), zone)]
    bars = [instants_of(datetime.combine(day, clock), zone)[0] for day in days]
    past, future = cut_after(40, bars, zone, is_aware=is_aware)
    # An earlier bar that was moved to the next day makes two on that day: bars that are not daily.
    assume(all(text[:10] == str(day) for text, day in zip(past[:-1], days, strict=False)))

    assert inferred(past, len(future), zone, calendar) == future


MARKETS = {
    "day": ([(weekday, time(9, 30), 6.5) for weekday in range(5)], None),
    "two sessions a day": ([(weekday, time(hour), 3) for weekday in range(5) for hour in (9, 13)], None),
    "night": ([(weekday, time(18), 23) for weekday in range(7)], None),
    "night, weekends off": ([(weekday, time(18), 23) for weekday in (6, 0, 1, 2, 3)], None),
    "week": ([(6, time(17), 120)], None),
    "around the clock": ([(0, time(0), 120)], "weekdays"),
}
"""Weekday, opening on the local clock, and hours of each session; and the calendar."""


def sessions(market: str, days: list[date], spacing: int, zone: ZoneInfo) -> Iterator[int]:
    """From each local opening on, at the spacing in real time, to before the close on the local clock."""
    newest = 0
    for day in days:
        for weekday, opening, hours in MARKETS[market][0]:
            if day.weekday() == weekday and has_day(day, zone):
                start = datetime.combine(day, opening)
                num_more = -(-int(hours * HOUR_S) // spacing) - 1
                end = instants_of(start + timedelta(seconds=num_more * spacing), zone)[1]
                bars = range(instants_of(start, zone)[0], end + 1, spacing)
                yield from (at for at in bars if at > newest)
                newest = max(newest, *bars)


@settings(deadline=None, max_examples=100)
@given(
    changes(),
    st.sampled_from(sorted(MARKETS)),
    st.sampled_from([30, 60]),
    st.integers(0, 4 * DAY_S) | st.integers(-20 * DAY_S, 0),
    st.booleans(),
)
@example(("America/Detroit", 1636264800), "night", 30, -8 * DAY_S, True)
@example(("Africa/Khartoum", 947930400), "day", 60, DAY_S, True)
@example(("Asia/Jerusalem", 1711670400), "week", 60, DAY_S, True)
@example(("Africa/Cairo", 1698354000), "night", 60, HOUR_S, True)
@example(("Africa/Cairo", 1698354000), "around the clock", 60, HOUR_S, True)
@example(("Pacific/Apia", 1325239200), "day", 60, DAY_S, True)
def test_sessions_open_at_their_local_time_and_run_in_real_time(
    change: tuple[str, int], market: str, minutes: int, before_s: int, is_aware: bool
) -> None:
    name, at = change
    zone, calendar = load_timezone(name), MARKETS[market][1]
    days = [
        local(at, zone).date() + timedelta(days=ahead)
        for ahead in range(-32, 13 + max(0, -before_s // DAY_S))
    ]
    # A night does not lead into a day that is not there, and the lookback shows one grid of times.
    assume("day" in market or all(has_day(day, zone) for day in days))
    moved = local(at, zone).replace(tzinfo=UTC) - local(at - 1, zone).replace(tzinfo=UTC)
    assume(before_s > 0 or (moved - timedelta(seconds=1)) % timedelta(minutes=minutes) == timedelta(0))
    bars = list(sessions(market, days, 60 * minutes, zone))
    cut = bisect_left(bars, at - before_s)
    past, future = cut_after(cut, bars, zone, is_aware=is_aware)
    num_bars = min(len(future), 5 * DAY_S // 60 // minutes)

    assert inferred(past, num_bars, zone, calendar) == future[:num_bars]


@pytest.mark.parametrize(
    ("name", "last", "expected"),
    [
        ("Europe/Berlin", "2017-10-28T22:00+02:00", "23+02 00+02 01+02 02+02 02+01 03+01"),
        ("America/New_York", "2013-03-09T23:00-05:00", "00-05 01-05 03-04 04-04"),
    ],
)
def test_hours_across_a_change_of_clocks(name: str, last: str, expected: str) -> None:
    zone, end = load_timezone(name), int(datetime.fromisoformat(last).timestamp())
    lookback = written([end - HOUR_S * hours for hours in range(60, -1, -1)], zone)

    found = inferred(lookback, len(expected.split()), zone)

    assert [text[11:13] + text[19:22] for text in found] == expected.split()


@pytest.mark.parametrize("year", [2025, 2026])
def test_offsets_alone_give_a_warning_before_any_clock_with_them_changes(year: int) -> None:
    offsets = {
        (at, local(at - 1, zone).isoformat()[19:])
        for name in ZONES
        for zone in [load_timezone(name)]
        for at in changes_of(name, year)
    }
    assert len(offsets) > 40
    for at, offset in sorted(offsets):
        last = datetime.fromtimestamp(at - HOUR_S, datetime.fromisoformat(f"2000-01-01T00:00{offset}").tzinfo)
        bars = [(last + timedelta(hours=ahead)).isoformat() for ahead in range(-60, 1)]
        stamps = parse_timestamps(bars)
        future = infer_future(stamps, 48).timestamps
        assert [text[19:] for text in future.texts] == [offset] * 48  # they continue as they are
        warning = offset_warning(stamps, future)
        assert warning is not None, (at, offset)
        assert "give timezone" in warning


@pytest.mark.parametrize(
    ("last", "spacing", "step"),
    [
        ("2024-03-29T12:00Z", 1, 1),
        ("2024-03-29T12:00", 1, 1),
        ("2024-03-29T12:00+08:00", 1, 1),
        ("2024-03-20T12:00+01:00", 1, 1),
        ("2024-05-20T12:00+01:00", 24, 1),  # not London's, as the lookback shows
    ],
)
def test_offsets_that_keep_give_no_warning(last: str, spacing: int, step: int) -> None:
    end = datetime.fromisoformat(last)
    texts = [(end + timedelta(hours=spacing * bar)).isoformat() for bar in range(-90, 1)]
    stamps = parse_timestamps([text.replace("+00:00", "Z") for text in texts])

    assert offset_warning(stamps, infer_future(stamps, 48).timestamps) is None


@pytest.mark.parametrize(("num_bars", "is_warned"), [(13, True), (48, False)])
def test_sessions_in_utc_are_warned_of_a_change_of_clocks(num_bars: int, is_warned: bool) -> None:
    first = datetime(2024, 2, 26, 14, 30)
    bars = [first + timedelta(days=day, minutes=30 * bar) for day in range(12) for bar in range(num_bars)]
    stamps = parse_timestamps([f"{time.isoformat()}Z" for time in bars])
    assert bool(offset_warning(stamps, infer_future(stamps, 60).timestamps)) == is_warned
