"""Inferred timestamps of each market equal those of its calendar, after any cut."""

from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, time, timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kronos_model.bars.calendar.sessions import CannotInfer
from kronos_model.bars.calendar.spacing import infer_future
from kronos_model.bars.columns import time_features
from kronos_model.bars.timestamps import Timestamps, check_continues, load_timezone, parse_timestamps
from kronos_model.errors import TimestampError

NEW_YEAR = date(2024, 1, 1)  # a Monday
MONDAY_TO_FRIDAY = range(5)


def minutes(clock: str) -> int:
    hour, minute = clock.split(":")
    return 60 * int(hour) + int(minute)


def session_bars(
    num_days: int,
    sessions: Iterable[tuple[str, str]],
    step: int,
    *,
    weekdays: Iterable[int] = MONDAY_TO_FRIDAY,
    days_off: Iterable[date] = (),
) -> list[datetime]:
    """Bars from each session's first time to its last."""
    clocks = [clock for first, last in sessions for clock in range(minutes(first), minutes(last) + 1, step)]
    days = [NEW_YEAR + timedelta(days=ahead) for ahead in range(num_days)]
    open_days = [day for day in days if day.weekday() in set(weekdays) and day not in set(days_off)]
    return [datetime.combine(day, time()) + timedelta(minutes=clock) for day in open_days for clock in clocks]


def round_the_clock_bars(num_days: int, step: int, is_open: Callable[[datetime], bool]) -> list[datetime]:
    start = datetime.combine(NEW_YEAR, time())
    bars = [start + timedelta(minutes=ahead) for ahead in range(0, num_days * 24 * 60, step)]
    return [bar for bar in bars if is_open(bar)]


def currency_market_is_open(bar: datetime) -> bool:
    """From Sunday 17:00 to Friday 17:00 in New York."""
    hour, weekday = bar.hour, bar.weekday()
    return weekday < 4 or (weekday == 4 and hour < 17) or (weekday == 6 and hour >= 17)


def futures_market_is_open(bar: datetime) -> bool:
    """As currencies, with an hour's break every day."""
    return currency_market_is_open(bar) and bar.hour != 17


def commodity_market_is_open(bar: datetime) -> bool:
    """Chinese commodity futures: day sessions and a night session that ends after midnight."""
    clock, weekday = bar.hour * 60 + bar.minute, bar.weekday()
    day = [("9:00", "10:15"), ("10:30", "11:30"), ("13:30", "15:00"), ("21:00", "24:00")]
    in_day = weekday < 5 and any(minutes(first) < clock <= minutes(last) for first, last in day)
    return in_day or (1 <= weekday <= 5 and clock <= minutes("2:30"))


A_SHARES = [("9:35", "11:30"), ("13:05", "15:00")]

MARKETS = {
    "A-shares, 5 minutes": session_bars(40, A_SHARES, 5),
    "A-shares, hourly": session_bars(120, [("10:30", "11:30"), ("14:00", "15:00")], 60),
    "A-shares, half a day": session_bars(250, [("11:30", "11:30"), ("15:00", "15:00")], 60),
    "US shares, 5 minutes": session_bars(30, [("9:30", "15:55")], 5),
    "US shares, hourly": session_bars(120, [("9:30", "15:30")], 60),
    "Hong Kong, 15 minutes": session_bars(60, [("9:45", "12:00"), ("13:15", "16:00")], 15),
    "Sunday to Thursday, 15 minutes": session_bars(60, [("10:00", "15:00")], 15, weekdays=(6, 0, 1, 2, 3)),
    "coins, 5 minutes": round_the_clock_bars(10, 5, lambda bar: True),
    "coins, 4 hours": round_the_clock_bars(150, 240, lambda bar: True),
    "currencies, hourly": round_the_clock_bars(60, 60, currency_market_is_open),
    "currencies, 4 hours": round_the_clock_bars(150, 240, currency_market_is_open),
    "futures, hourly": round_the_clock_bars(60, 60, futures_market_is_open),
    "night sessions, 15 minutes": round_the_clock_bars(60, 15, commodity_market_is_open),
    "daily, Monday to Friday": session_bars(600, [("0:00", "0:00")], 1),
    "daily, every day": session_bars(400, [("0:00", "0:00")], 1, weekdays=range(7)),
    "daily, Sunday to Thursday": session_bars(500, [("16:00", "16:00")], 1, weekdays=(6, 0, 1, 2, 3)),
    "every second day": [datetime(2024, 1, 1) + timedelta(days=2 * ahead) for ahead in range(350)],
    "weekly": [datetime(2024, 1, 5) + timedelta(weeks=ahead) for ahead in range(350)],
    "monthly": [datetime(2000 + ahead // 12, ahead % 12 + 1, 1) for ahead in range(350)],
    "quarterly": [datetime(2000 + ahead // 4, ahead % 4 * 3 + 1, 15) for ahead in range(350)],
}


def inferred(bars: Iterable[datetime | str], num_bars: int, zone: str | None = None) -> list[str]:
    stamps = parse_timestamps([str(bar) for bar in bars])
    future = infer_future(stamps, num_bars, None if zone is None else load_timezone(zone))
    assert (
        parse_timestamps(future.timestamps.texts).texts == future.timestamps.texts
    )  # well-formed, ascending
    return list(future.timestamps.texts)


def warning_for(bars: Iterable[datetime | str], num_bars: int) -> str | None:
    return infer_future(parse_timestamps([str(bar) for bar in bars]), num_bars).warning


def refusal_of(bars: Iterable[datetime | str], num_bars: int = 10) -> str:
    with pytest.raises(TimestampError) as caught:
        infer_future(parse_timestamps([str(bar) for bar in bars]), num_bars)
    assert (caught.value.code, caught.value.field) == ("CANNOT_INFER_TIMESTAMPS", "future_timestamps")
    assert "give them, or a longer lookback" in caught.value.message
    return caught.value.message


@pytest.mark.parametrize("market", MARKETS)
@pytest.mark.parametrize("num_bars", [5, 60])
def test_inferred_times_equal_the_actual_ones_after_any_cut(market: str, num_bars: int) -> None:
    bars = MARKETS[market]
    lookback = 280
    for start in range(0, len(bars) - lookback - num_bars, 11):
        cut = start + lookback
        expected = [str(bar) for bar in bars[cut : cut + num_bars]]
        assert inferred(bars[start:cut], num_bars) == expected, f"cut at {bars[cut - 1]}"


@pytest.mark.parametrize("market", [name for name in MARKETS if "second" not in name])
def test_one_missing_bar_does_not_hide_the_rule(market: str) -> None:
    bars = MARKETS[market]
    lookback = bars[:280]
    for missing in range(1, 279, 9):
        thinned = lookback[:missing] + lookback[missing + 1 :]
        assert inferred(thinned, 30) == [str(bar) for bar in bars[280:310]], f"without {bars[missing]}"


@pytest.mark.parametrize(
    ("sessions", "step"), [(A_SHARES, 5), ([("9:30", "15:30")], 60), ([("0:00", "0:00")], 1)]
)
@pytest.mark.parametrize("weekday", MONDAY_TO_FRIDAY)
def test_a_day_off_does_not_hide_the_rule(sessions: list[tuple[str, str]], step: int, weekday: int) -> None:
    day_off = NEW_YEAR + timedelta(days=14 + weekday)
    bars = session_bars(80, sessions, step, days_off=[day_off])
    last = next(index for index, bar in enumerate(bars) if bar.date() > day_off + timedelta(days=8))

    assert inferred(bars[max(0, last - 300) : last], 20) == [str(bar) for bar in bars[last : last + 20]]


def test_exceptional_days_do_not_hide_the_rule() -> None:
    """A holiday week, a single session on a Saturday, and a half day."""
    week = [NEW_YEAR + timedelta(days=14 + day) for day in range(7)]
    bars = session_bars(60, A_SHARES, 5, days_off=week)
    last = next(index for index, bar in enumerate(bars) if bar.date() > week[-1]) + 30
    assert inferred(bars[last - 200 : last], 48) == [str(bar) for bar in bars[last : last + 48]]

    bars = session_bars(100, [("0:00", "0:00")], 1)
    assert inferred(sorted([*bars[:60], datetime(2024, 1, 20)]), 10) == [str(bar) for bar in bars[60:70]]

    bars = session_bars(30, [("9:30", "15:55")], 5)
    half_day = [bar for bar in bars if bar.date() != date(2024, 1, 9) or bar.hour < 13]
    cut = half_day.index(datetime(2024, 1, 15, 11, 0))
    assert inferred(half_day[cut - 390 : cut], 100) == [str(bar) for bar in half_day[cut : cut + 100]]


@pytest.mark.parametrize("lookback", [50, 60, 100, 200])
def test_two_days_of_a_day_session_are_enough(lookback: int) -> None:
    bars = MARKETS["A-shares, 5 minutes"]
    for start in range(0, len(bars) - lookback - 48, 13):
        cut = start + lookback
        assert inferred(bars[start:cut], 48) == [str(bar) for bar in bars[cut : cut + 48]]


def test_a_lookback_without_a_weekend_gives_a_warning() -> None:
    bars = MARKETS["A-shares, 5 minutes"]
    monday, wednesday, friday, next_monday = (day * 48 for day in (0, 2, 4, 5))

    assert warning_for(bars[monday:wednesday], 40) is None
    assert "weekend" in (warning_for(bars[wednesday:friday], 10) or "")
    assert "weekend" in (warning_for(bars[friday - 48 : next_monday], 10) or "")
    assert warning_for(bars[friday - 48 : next_monday + 10], 40) is None
    assert warning_for(bars[monday : next_monday + 10], 240) is None


def test_a_lookback_without_a_break_continues_without_one() -> None:
    bars = [datetime(2024, 1, 2) + timedelta(minutes=5 * ahead) for ahead in range(2300)]

    assert inferred(bars[:100], 12) == [str(bar) for bar in bars[100:112]]
    assert "night" in (warning_for(bars[:100], 12) or "")
    assert warning_for(bars[:300], 100) is None
    assert "weekend" in (warning_for(bars[:1000], 100) or "")  # Friday evening
    assert warning_for(bars[:2017], 200) is None  # a whole week


@pytest.mark.parametrize(
    "bars",
    [
        pytest.param(MARKETS["A-shares, 5 minutes"][:2], id="too few bars"),
        pytest.param(MARKETS["A-shares, 5 minutes"][10:35], id="a lunch break, but no close"),
        pytest.param(MARKETS["A-shares, 5 minutes"][36:60], id="a night, but no lunch break"),
        pytest.param(MARKETS["US shares, 5 minutes"][40:100], id="two parts of days with a hole between"),
        pytest.param([f"2024-01-01 {h:02}:{h * h % 60:02}" for h in range(20)], id="irregular times"),
        pytest.param([f"2024-{1 + d // 28:02}-{1 + d % 28:02}" for d in (0, 1, 5, 6, 15, 17, 30)], id="days"),
        pytest.param(["2024-01-01", "2024-01-02 10:03", "2024-01-03 17:21", "2024-01-04 11:11"], id="clocks"),
        pytest.param(["9999-12-29", "9999-12-30", "9999-12-31"], id="the end of time"),
    ],
)
def test_irregular_or_short_lookbacks_are_refused(bars: list[datetime | str]) -> None:
    refusal_of(bars)


def test_daily_bars_without_a_weekend_are_refused() -> None:
    bars = MARKETS["daily, Monday to Friday"]

    assert inferred(bars[:3], 2) == ["2024-01-04 00:00:00", "2024-01-05 00:00:00"]
    assert "Saturday" in refusal_of(bars[:3], 3)
    assert inferred(bars[3:6], 5) == [str(bar) for bar in bars[6:11]]


def test_currencies_without_a_weekend_are_refused() -> None:
    bars = [bar for bar in MARKETS["futures, hourly"] if date(2024, 1, 8) < bar.date() < date(2024, 1, 12)]

    assert inferred(bars, 12)[-1] == "2024-01-12 11:00:00"
    assert "weekend" in refusal_of(bars, 13)


def test_shifted_sessions_are_refused() -> None:
    """A US exchange in UTC: summer time moves its session by an hour."""
    winter = session_bars(8, [("14:30", "20:55")], 5)
    summer = [bar for bar in session_bars(40, [("13:30", "19:55")], 5) if bar.date() >= date(2024, 1, 9)]

    assert "change" in refusal_of([*winter, *summer[:50]])
    assert inferred(summer[:400], 100) == [str(bar) for bar in summer[400:500]]


@pytest.mark.parametrize(
    ("dates", "expected"),
    [
        (["2024-01-31", "2024-02-29", "2024-03-31", "2024-04-30"], ["2024-05-31", "2024-06-30"]),
        (["2024-01-31", "2024-02-29", "2024-03-29", "2024-04-30"], ["2024-05-31", "2024-06-28"]),
        (["2024-04-01", "2024-05-01", "2024-06-03", "2024-07-01"], ["2024-08-01", "2024-09-02"]),
        (["2023-10-30", "2023-11-30", "2023-12-30", "2024-01-30"], ["2024-02-29", "2024-03-30"]),
        (["2021-12-31", "2022-12-31", "2023-12-31"], ["2024-12-31", "2025-12-31"]),
        (["2024-01-05", "2024-01-12", "2024-01-18", "2024-01-26", "2024-02-02"], ["2024-02-09"]),
        (["2024-01-15", "2024-02-12", "2024-03-11"], ["2024-04-08", "2024-05-06"]),  # four weeks
        (["2024-01-10", "2024-01-20", "2024-01-30", "2024-02-09"], ["2024-02-19", "2024-02-29"]),  # ten days
    ],
)  # fmt: skip
def test_months_weeks_and_days_apart(dates: list[str], expected: list[str]) -> None:
    assert inferred(dates, len(expected)) == expected


def hourly(start: str, num_bars: int, offset: str = "") -> list[str]:
    first = np.datetime64(start)
    return [f"{first + np.timedelta64(ahead, 'h')}{offset}" for ahead in range(num_bars)]


def on(days: Iterable[str], time: str) -> list[str]:
    return [f"2024-{day}T{time}" for day in days]


NEW_YORK = "America/New_York"
BEFORE_SPRING, BEFORE_AUTUMN = "2024-03-09T22:00", "2024-11-02T22:00"
TWO_TO_THREE = ["2024-03-10T02:00", "2024-03-10T03:00"]
THREE_TO_FOUR = ["2024-03-10T03:00", "2024-03-10T04:00"]
SPRING = on(("03-01", "03-04", "03-05", "03-06", "03-07", "03-08"), "16:00-05:00")
AUTUMN = on(("10-31", "11-01", "11-02"), "16:00-04:00")
SESSIONS = [f"2024-03-0{day}T{hour:02}:30-05:00" for day in (4, 5, 6, 7, 8) for hour in range(9, 16)]


@pytest.mark.parametrize(
    ("bars", "zone", "expected"),
    [
        # The form of the input is kept.
        (["2024-01-01T22:00Z", "2024-01-01T23:00Z", "2024-01-02T00:00Z"], None, ["2024-01-02T01:00Z"]),
        (
            [f"2024-01-0{day} 16:00:00.000-05:00" for day in (4, 5, 8)], None,
            ["2024-01-09 16:00:00.000-05:00"],
        ),
        (["2024-01-01", "2024-01-01 12:00", "2024-01-02"], None, ["2024-01-02T12:00", "2024-01-03T00:00"]),
        # Without a zone the last offset is kept.
        (
            [*on(("03-07", "03-08"), "16:00-05:00"), "2024-03-11T16:00-04:00"], None,
            on(("03-12", "03-13"), "16:00-04:00"),
        ),
        (on(("03-07", "03-08", "03-09", "03-10"), "16:00-05:00"), None, on(["03-11"], "16:00-05:00")),
        # Daily bars and sessions keep the wall clock over a clock change.
        (SPRING, NEW_YORK, on(("03-11", "03-12"), "16:00-04:00")),
        ([*AUTUMN, "2024-11-03T16:00-05:00"], NEW_YORK, on(["11-04"], "16:00-05:00")),
        (SESSIONS, NEW_YORK, [f"2024-03-11T{hour:02}:30-04:00" for hour in range(9, 16)]),
        # Constant spacing skips the hour that does not exist.
        (hourly(BEFORE_SPRING, 4), NEW_YORK, THREE_TO_FOUR),
        (hourly(BEFORE_SPRING, 4, "-05:00"), NEW_YORK, [f"{text}-04:00" for text in THREE_TO_FOUR]),
        (hourly(BEFORE_SPRING, 4, "-05:00"), None, [f"{text}-05:00" for text in TWO_TO_THREE]),
        (hourly(BEFORE_SPRING, 4), None, TWO_TO_THREE),
        # It repeats the hour only with offsets.
        (
            hourly(BEFORE_AUTUMN, 4, "-04:00"), NEW_YORK,
            [f"2024-11-03T0{hour}:00-05:00" for hour in (1, 2, 3)],
        ),
        (hourly(BEFORE_AUTUMN, 4), NEW_YORK, ["2024-11-03T02:00", "2024-11-03T03:00"]),
    ],
)  # fmt: skip
def test_the_form_and_the_wall_clock_are_kept(bars: list[str], zone: str | None, expected: list[str]) -> None:
    assert inferred(bars, len(expected), zone) == expected


@pytest.mark.parametrize("start", ["2024-03-09T00:00", "2024-11-02T00:00"])
def test_a_lookback_over_a_clock_change_is_still_evenly_spaced(start: str) -> None:
    zone = load_timezone("America/New_York")
    instants = [datetime.fromisoformat(f"{start}+00:00") + timedelta(hours=ahead) for ahead in range(72)]
    aware = [at.astimezone(zone).isoformat() for at in instants]

    assert inferred(aware[:60], 12, "America/New_York") == aware[60:]

    naive = list(dict.fromkeys(text[:19] for text in aware))  # the repeated hour can be there only once
    assert inferred(naive[:50], 12, "America/New_York") == naive[50:62]


def test_time_features_of_inferred_bars_are_those_of_the_wall_clock() -> None:
    stamps = parse_timestamps(hourly(BEFORE_SPRING, 4, "-05:00"))

    future = infer_future(stamps, 1, load_timezone("America/New_York")).timestamps

    assert time_features(future.wall).tolist() == [[0, 3, 6, 10, 3]]  # Sunday, 10 March, 03:00
    assert future.instants[0] - stamps.instants[-1] == np.timedelta64(1, "h")


SECOND_US = 10**6
SPACINGS_US = st.sampled_from(
    [1, *(SECOND_US * spacing for spacing in (1, 60, 300, 3600, 14400, 86400, 7 * 86400, 30 * 86400, 10**9))]
)


def future_or_none(lookback: Timestamps, num_bars: int, zone: str | None = None) -> Timestamps | None:
    """None if it is refused correctly; any other error fails the test."""
    try:
        return infer_future(lookback, num_bars, None if zone is None else load_timezone(zone)).timestamps
    except CannotInfer:
        return None


@settings(deadline=None)  # the machine may be busy
@given(
    start=st.datetimes(datetime(2024, 1, 1), datetime(2024, 12, 31)),
    runs=st.lists(st.tuples(SPACINGS_US, st.integers(1, 40)), min_size=1, max_size=12),
    zone=st.sampled_from([None, "UTC", "America/New_York", "Asia/Shanghai"]),
    is_aware=st.booleans(),
)
def test_any_lookback_is_continued_in_order_or_refused(
    start: datetime, runs: list[tuple[int, int]], zone: str | None, is_aware: bool
) -> None:
    offsets_us = np.cumsum([0, *(spacing for spacing, repeats in runs for _ in range(repeats))])
    offsets_us = offsets_us[offsets_us < 7900 * 365 * 86400 * SECOND_US]
    times = [start.replace(tzinfo=UTC) + timedelta(microseconds=offset) for offset in offsets_us.tolist()]
    if is_aware:
        local = [time.astimezone(load_timezone(zone or "America/New_York")) for time in times]
        lookback = parse_timestamps([time.isoformat() for time in local])
    else:
        lookback = parse_timestamps([time.replace(tzinfo=None).isoformat() for time in times])

    future = future_or_none(lookback, 60, zone)

    if future is not None:
        check_continues(lookback, future)
        again = parse_timestamps(future.texts)
        assert len(again) == 60
        assert np.array_equal(again.wall, future.wall)


@pytest.mark.parametrize("unit", ["us", "s", "m"])
def test_hostile_lookbacks_take_little_time(unit: str) -> None:
    rng = np.random.default_rng(3)
    spacings = rng.choice([1, 1, 1, 2, 3, 900, 7000, 80_000], size=8191)
    times = np.datetime64("1970-01-01", unit) + np.concatenate([[0], np.cumsum(spacings)])

    future = future_or_none(parse_timestamps(times.astype("datetime64[us]").astype(str).tolist()), 512)

    assert future is None or len(future) == 512
