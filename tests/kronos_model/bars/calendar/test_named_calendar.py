"""Future timestamps by a named calendar."""

import sys
from datetime import UTC, date, timedelta
from itertools import product
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from kronos_model.bars.calendar.exchange import Exchange, SessionBars, load_exchange
from kronos_model.bars.calendar.named_calendar import follow_calendar
from kronos_model.bars.timestamps import parse_timestamps
from kronos_model.errors import KronosError, TimestampError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:exchange_calendars")

NEW_YORK = ZoneInfo("America/New_York")


def weekdays(first: str, last: str) -> list[str]:
    day, end = date.fromisoformat(first), date.fromisoformat(last)
    days = [day + timedelta(days=n) for n in range((end - day).days + 1)]
    return [each.isoformat() for each in days if each.weekday() < 5]


def within(days: list[str], clocks: list[str], offset: str = "") -> list[str]:
    return [f"{day}T{clock}{offset}" for day in days for clock in clocks]


def clocks(first: str, last: str, minutes: int) -> list[str]:
    start, end = (np.datetime64(f"2024-01-01T{clock}") for clock in (first, last))
    step = np.timedelta64(minutes, "m")
    return [str(at)[11:16] for at in np.arange(start, end + np.timedelta64(1, "m"), step)]


def follow(name: str, texts: list[str], num_bars: int, zone: ZoneInfo | None = None) -> list[str]:
    return list(follow_calendar(name, parse_timestamps(texts, zone=zone), num_bars, zone).timestamps.texts)


THANKSGIVING_WEEK = weekdays("2024-11-11", "2024-11-27")


FRIDAY = [f"2024-11-22T{hour:02}:00" for hour in range(9, 24)]
THREE_A_DAY = within(weekdays("2024-11-21", "2024-11-22"), ["09:00", "10:00", "14:00"])


@pytest.mark.parametrize(
    ("name", "texts", "expected"),
    [
        ("XNYS", THANKSGIVING_WEEK, ["2024-11-29", "2024-12-02", "2024-12-03"]),
        ("XNYS", within(THANKSGIVING_WEEK, ["16:00"]), ["2024-11-29T16:00", "2024-12-02T16:00"]),
        ("24/7", weekdays("2024-11-18", "2024-11-22"), ["2024-11-23", "2024-11-24"]),
        ("24/7", FRIDAY, ["2024-11-23T00:00", "2024-11-23T01:00"]),
        ("weekdays", THANKSGIVING_WEEK, ["2024-11-28", "2024-11-29"]),
        ("weekdays", THREE_A_DAY[:-1], ["2024-11-22T14:00", "2024-11-25T09:00", "2024-11-25T10:00"]),
        # Weekly bars are inferred as without a calendar.
        ("XNYS", weekdays("2024-09-06", "2024-11-22")[::5], ["2024-11-29"]),
        # Bars of a millisecond take no list of a session.
        (
            "XNYS", [f"2024-03-05T10:00:00.{number:03}" for number in range(200)],
            ["2024-03-05T10:00:00.200", "2024-03-05T10:00:00.201"],
        ),
    ],
)  # fmt: skip
def test_bars_go_on_as_the_calendar_trades(name: str, texts: list[str], expected: list[str]) -> None:
    assert follow(name, texts, len(expected)) == expected


@pytest.mark.parametrize(
    ("first", "last", "half_day"),
    [
        ("09:30", "15:30", ["09:30", "10:00", "10:30", "11:00", "11:30", "12:00", "12:30"]),
        ("10:00", "16:00", ["10:00", "10:30", "11:00", "11:30", "12:00", "12:30", "13:00"]),
    ],
    ids=["written at a bar's start", "written at its end"],
)
def test_half_days_end_early(first: str, last: str, half_day: list[str]) -> None:
    future = follow("XNYS", within(THANKSGIVING_WEEK, clocks(first, last, 30)), 9)

    assert future[:7] == [f"2024-11-29T{clock}" for clock in half_day]
    assert future[7] == f"2024-12-02T{first}"


def test_a_lunch_break_is_kept() -> None:
    day = [*clocks("09:30", "11:30", 30), *clocks("13:00", "15:30", 30)]
    future = follow("XHKG", within(weekdays("2024-03-18", "2024-03-27"), day), 13)

    assert future[:3] == ["2024-03-28T09:30", "2024-03-28T10:00", "2024-03-28T10:30"]
    assert future[11:] == ["2024-04-02T09:30", "2024-04-02T10:00"]  # after Easter
    assert "2024-03-28T12:30" not in future


@pytest.mark.parametrize(
    ("offset", "zone", "expected"),
    [
        ("", None, "2024-03-11T09:30"),
        ("-05:00", None, "2024-03-11T09:30-04:00"),
        ("-05:00", NEW_YORK, "2024-03-11T09:30-04:00"),
    ],
)
def test_sessions_keep_the_exchanges_clock_over_a_clock_change(
    offset: str, zone: ZoneInfo | None, expected: str
) -> None:
    lookback = within(weekdays("2024-02-26", "2024-03-08"), clocks("09:30", "15:30", 60), offset)

    assert follow("XNYS", lookback, 1, zone) == [expected]


def test_times_in_utc_move_with_the_exchange() -> None:
    lookback = within(weekdays("2024-02-26", "2024-03-08"), clocks("14:30", "20:30", 60), "Z")
    naive = [text.removesuffix("Z") for text in lookback]

    assert follow("XNYS", lookback, 1) == ["2024-03-11T13:30Z"]
    assert follow("XNYS", naive, 1, ZoneInfo("UTC")) == ["2024-03-11T13:30"]
    with pytest.raises(TimestampError, match="bars lie outside the sessions of XNYS") as raised:
        follow("XNYS", within(weekdays("2024-02-26", "2024-03-08"), clocks("18:30", "23:30", 60)), 1)
    assert (raised.value.code, raised.value.field) == ("CANNOT_INFER_TIMESTAMPS", "calendar")


@pytest.mark.parametrize(
    ("name", "texts", "reason"),
    [
        (
            "weekdays",
            [f"2024-03-{day:02}T{day + hour:02}:00" for day in range(1, 11) for hour in (0, 11)],
            "no time of day",
        ),
        ("XNYS", within(["2024-01-01"], clocks("00:00", "04:00", 5)), "49 of 49 bars lie outside"),
        ("24/7", within(["9999-12-31"], clocks("23:57", "23:59", 1)), "beyond the year 9999"),
    ],
    ids=["no usual time of day", "only a holiday of the calendar's first year", "the end of time"],
)
def test_bars_that_fit_no_session_are_refused(name: str, texts: list[str], reason: str) -> None:
    with pytest.raises(TimestampError, match=reason):
        follow(name, texts, 3)


def test_a_calendar_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TimestampError, match="'MARS' is no calendar") as raised:
        follow("MARS", THANKSGIVING_WEEK, 1)
    assert raised.value.code == "CALENDAR_UNKNOWN"


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "exchange_calendars", None)
    with pytest.raises(KronosError, match=r"kronos-worker\[calendars\]") as raised:
        load_exchange.__wrapped__("XNYS", 2024, 2025)
    assert raised.value.code == "NOT_INSTALLED"


# The second span follows the first without a break; no span is a whole number of bars of 7.
STARTS, ENDS = np.array([100, 150, 300, 500]), np.array([150, 181, 340, 503])
EXCHANGE = Exchange(UTC, np.arange(4), STARTS, ENDS, ENDS)


@pytest.mark.parametrize(
    ("spacing", "with_start", "with_end"), [*product((1, 7, 10, 60), *[(True, False)] * 2)]
)
def test_bars_are_those_of_the_list(spacing: int, with_start: bool, with_end: bool) -> None:
    listed: set[int] = set()
    for start, end in zip(STARTS.tolist(), ENDS.tolist(), strict=True):
        listed |= set(range(start if with_start else start + spacing, end, spacing))
        listed |= {end} if with_end else set()
    bars = SessionBars(EXCHANGE, spacing, with_start, with_end)
    every = np.arange(90, 520)
    assert every[bars.contain(every)].tolist() == sorted(listed)
    for first, last in ((90, 519), (107, 150), (150, 310), (181, 181), (182, 299), (340, 503)):
        assert bars.count(first, last) == len([at for at in listed if first <= at <= last])
        later = sorted(at for at in listed if at > first)
        assert bars.after(first, 3).tolist() == later[:3]
        assert bars.after(first, 1000).tolist() == later
