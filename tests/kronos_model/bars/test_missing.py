"""Bars without prices, and bars that are not there."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from kronos_model.bars.missing import Filled
from kronos_model.bars.timestamps import load_timezone, parse_timestamps
from kronos_model.errors import CandleError

NAN = float("nan")


def columns(*closes: float, **changes: list[float]) -> dict[str, np.ndarray]:
    close = np.array(closes)
    given = {"open": close - 1, "high": close + 1, "low": close - 2, "close": close}
    given |= {"volume": np.full(len(close), 5.0)}
    return given | {name: np.array(values) for name, values in changes.items()}


def times(*minutes: int, offset: str = "") -> list[str]:
    return [f"2024-06-18T{9 + minute // 60:02}:{minute % 60:02}{offset}" for minute in minutes]


def settled(given: dict[str, np.ndarray], texts: list[str], how: str):
    return Filled.from_columns(given, how).settled(parse_timestamps(texts), how)


GAPPED = columns(10, NAN, 12, 0, 14, volume=[5, NAN, 5, 0, 5])


@pytest.mark.parametrize("first", ["2024-03-10T00:00-05:00", "2024-11-03T00:00-04:00"])
def test_bars_that_are_added_are_on_the_zones_clock(first: str) -> None:
    zone, start = load_timezone("America/New_York"), datetime.fromisoformat(first).astimezone(UTC)
    texts = [(start + timedelta(hours=hour)).astimezone(zone).isoformat() for hour in range(-24, 9)]
    filled = Filled.from_columns(columns(*range(1, 31)), "ffill")

    bars, stamps, _ = filled.settled(parse_timestamps([*texts[:25], *texts[28:]]), "ffill", zone)

    assert bars["close"].tolist()[24:] == [25, 25, 25, 25, 26, 27, 28, 29, 30]
    assert list(stamps.texts) == texts
    assert parse_timestamps(texts, zone=zone).instants.tolist() == stamps.instants.tolist()


@pytest.mark.parametrize("change", ["2024-03-10T00:00-05:00", "2024-11-03T00:00-04:00"])
def test_a_break_at_a_local_time_is_no_outage_as_clocks_change(change: str) -> None:
    zone, start = load_timezone("America/New_York"), datetime.fromisoformat(change).astimezone(UTC)
    clocks = [(start + timedelta(hours=hour)).astimezone(zone) for hour in range(-72, 72)]
    texts = [clock.isoformat() for clock in clocks if clock.hour != 17]
    filled = Filled.from_columns(columns(*range(1, len(texts) + 1)), "ffill")

    _, stamps, warnings = filled.settled(parse_timestamps(texts), "ffill", zone)

    assert (list(stamps.texts), warnings) == (texts, [])


def test_filled_bars_have_the_close_before_and_no_volume() -> None:
    bars, stamps, warnings = settled(GAPPED, times(0, 5, 10, 15, 20), "ffill")

    assert bars["close"].tolist() == [10, 10, 12, 12, 14]
    assert bars["high"].tolist() == [11, 10, 13, 12, 15]
    assert bars["volume"].tolist() == [5, 0, 5, 0, 5]
    assert len(stamps) == 5
    assert warnings == ["Without prices: 2 of 5 bars. They have the close before them."]


def test_dropped_bars_are_left_out_with_their_times() -> None:
    bars, stamps, warnings = settled(GAPPED, times(0, 5, 10, 15, 20), "drop")

    assert bars["close"].tolist() == [10, 12, 14]
    assert stamps.texts == tuple(times(0, 10, 20))
    assert warnings == ["Without prices: 2 of 5 bars. They are left out."]


@pytest.mark.parametrize("how", ["ffill", "drop"])
def test_a_bar_with_prices_and_no_volume_stays_and_is_counted(how: str) -> None:
    given = columns(10, 11, NAN, 13, volume=[5, NAN, NAN, 5], amount=[NAN, NAN, 7, 5])
    bars, _, warnings = settled(given, times(0, 5, 10, 15), how)

    assert bars["volume"][:2].tolist() == [5, 0]
    assert bars["amount"][:2].tolist() == [0, 0]
    assert warnings[1:] == ["Without volume or amount: 2 of 4 bars. It is taken as 0."]


def test_bars_before_the_first_price_cannot_be_filled() -> None:
    bars, stamps, warnings = settled(columns(NAN, NAN, 12, NAN), times(0, 5, 10, 15), "ffill")

    assert bars["close"].tolist() == [12, 12]
    assert stamps.texts == tuple(times(10, 15))
    assert warnings == [
        "Without prices: 1 of 4 bars. They have the close before them.",
        "Without prices: 2 of 4 bars. They are left out.",
    ]


def test_bars_that_are_not_there_are_added_between_others() -> None:
    given = columns(*range(10, 20))
    there = times(*(5 * n for n in range(12) if n not in (4, 7)), offset="+08:00")
    bars, stamps, warnings = settled(given, there, "ffill")

    assert stamps.texts == tuple(times(*range(0, 60, 5), offset="+08:00"))
    assert bars["close"].tolist() == [10, 11, 12, 13, 13, 14, 15, 15, 16, 17, 18, 19]
    assert bars["low"][4] == 13
    assert bars["volume"][[4, 7]].tolist() == [0, 0]
    assert warnings == ["Bars that were not there: 2. They were added with the close before them."]
    _, as_they_were, nothing = settled(given, there, "drop")
    assert (list(as_they_were.texts), nothing) == (there, [])


def test_nights_and_days_off_are_no_missing_bars() -> None:
    daily = [f"2024-06-{day:02}" for day in (3, 4, 5, 6, 7, 10, 12, 13, 14)]
    assert settled(columns(*range(1, 10)), daily, "ffill")[2] == []
    days = [f"2024-06-{day:02}T{hour:02}:00" for day in (3, 4, 5) for hour in (9, 10, 11, 13, 14)]
    assert settled(columns(*range(1, 16)), days, "ffill")[2] == []


def test_a_series_without_any_price_is_refused() -> None:
    with pytest.raises(CandleError, match="no bar of the series has prices") as raised:
        Filled.from_columns(columns(NAN, NAN), "ffill")
    assert raised.value.code == "EMPTY_SERIES"


def test_a_price_of_zero_with_volume_is_no_missing_bar() -> None:
    assert not Filled.from_columns(columns(0, 10), "ffill").is_gone.any()
