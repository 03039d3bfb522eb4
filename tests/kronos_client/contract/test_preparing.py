from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from kronos_client.contract.columns import encode_column
from kronos_client.contract.errors import JobError
from kronos_client.contract.jobs import Limits, PreparedSeries, parse_job, prepare
from kronos_model.bars.columns import CLOSE, COLUMNS, PRICE_COLUMNS, time_features
from kronos_model.seeds import derive_series_seed, seed_from_text
from tests.kronos_client.contract.contract_jobs import job, series, timestamps

LIMITS = Limits()


def prepared(payload: dict[str, Any], job_id: str = "an id") -> tuple[PreparedSeries, ...]:
    return prepare(parse_job(payload, LIMITS), job_id, LIMITS)


def refusal_of(payload: dict[str, Any], limits: Limits = LIMITS) -> JobError:
    with pytest.raises(JobError) as caught:
        prepare(parse_job(payload, limits), "an id", limits)
    assert len(caught.value.message) < 300
    return caught.value


def test_columns_come_out_as_they_were_sent() -> None:
    sent = series()

    (one,) = prepared(job(sent))

    assert one.bars.dtype == np.float32
    for index, name in enumerate(COLUMNS):
        if name in sent:
            assert one.bars[:, index].tolist() == np.float32(sent[name]).tolist()


def test_arrays_and_base64_say_the_same() -> None:
    sent = series()
    packed = sent | {name: encode_column(sent[name]) for name in COLUMNS if name in sent}

    (plain,), (encoded,) = prepared(job(sent)), prepared(job(packed))

    given = [index for index, name in enumerate(COLUMNS) if name in sent]
    assert np.array_equal(encoded.bars[:, given], plain.bars[:, given])
    assert encoded.future_timestamps == plain.future_timestamps


def test_prepared_arrays_are_read_only() -> None:
    (one,) = prepared(job())

    for values in (one.bars, one.stamps, one.future_stamps):
        with pytest.raises(ValueError, match="read-only"):
            values[0] = values[1]


def test_the_arrays_of_a_model_are_those_of_its_last_bars() -> None:
    whole = prepared(job())[0]

    last = whole.last(7)

    np.testing.assert_array_equal(last.bars, whole.bars[-7:])
    np.testing.assert_array_equal(last.stamps, whole.stamps[-7:])
    np.testing.assert_array_equal(last.future_stamps, whole.future_stamps)
    assert (len(whole.bars), len(whole.stamps), len(whole.future_stamps)) == (30, 30, 5)
    assert whole.last(31).bars is whole.bars


@pytest.mark.parametrize("suffix", ["", "Z", "+08:00"])
def test_the_wall_clock_is_kept_as_written(suffix: str) -> None:
    (one,) = prepared(job(series(timestamps=timestamps(30, suffix=suffix))))

    hours = np.datetime64("2024-01-01T00:00:00") + np.arange(35) * np.timedelta64(1, "h")
    np.testing.assert_array_equal(one.stamps, time_features(hours[:30]))
    np.testing.assert_array_equal(one.future_stamps, time_features(hours[30:]))
    assert one.future_timestamps == tuple(timestamps(5, start="2024-01-02T06:00:00", suffix=suffix))
    assert one.future_stamps.tolist()[0] == [0, 6, 1, 2, 1]


def test_given_future_timestamps_are_taken_as_they_are() -> None:
    future = [
        "2024-01-05T00:00:00",
        "2024-01-05T00:00:01",
        "2024-01-06",
        "2024-02-01T10:00",
        "2024-03-01 10:00",
    ]

    (one,) = prepared(job(series(future_timestamps=future)))

    assert one.future_timestamps == tuple(future)
    assert one.future_stamps[-1].tolist() == [0, 10, 4, 1, 3]
    assert one.warnings == ()


def test_inferred_timestamps_follow_the_zone() -> None:
    lookback = timestamps(30, start="2024-03-08T20:00:00", suffix="-05:00")  # to 01:00, before the change

    (one,) = prepared(job(series(timestamps=lookback, timezone="America/New_York"), pred_len=1))

    assert one.future_timestamps == ("2024-03-10T03:00:00-04:00",)


@pytest.mark.parametrize("start", ["0001-01-01T00:00:00", "9999-12-30T15:00:00", "9999-12-30T17:00:00"])
@pytest.mark.parametrize("suffix", ["", "Z", "+00:00", "-14:00"])
@pytest.mark.parametrize("zone", [None, "UTC", "Pacific/Auckland"])
def test_times_at_the_ends_of_the_calendar_are_read_or_refused(start, suffix, zone) -> None:
    lookback = timestamps(30, start=start, suffix=suffix)

    with suppress(JobError):
        assert len(prepared(job(series(timestamps=lookback, timezone=zone)))[0].future_timestamps) == 5


@pytest.mark.parametrize(
    ("suffix", "options", "is_warned"),
    [
        ("-05:00", {}, True),
        ("-05:00", {"calendar": "24/7"}, True),
        ("-05:00", {"timezone": "America/New_York"}, False),
        ("-05:00", {"future_timestamps": timestamps(5, start="2024-03-11T00:00:00", suffix="-04:00")}, False),
        ("", {}, False),
        ("Z", {}, False),
    ],
)
def test_offsets_alone_give_a_warning_as_clocks_change(suffix, options, is_warned) -> None:
    lookback = timestamps(30, start="2024-03-08T20:00:00", suffix=suffix)

    (one,) = prepared(job(series(timestamps=lookback, **options)))

    assert (
        any("America/New_York has another one: give timezone" in text for text in one.warnings) == is_warned
    )


def test_a_guess_comes_with_a_warning_of_its_series_alone() -> None:
    short, given = prepared(
        job(series("XY", num_bars=10), series("Z", future_timestamps=timestamps(5, start="2024-02-01")))
    )

    assert len(short.warnings) == 1
    assert given.warnings == ()


def test_candles_that_no_market_prints_give_a_warning_that_names_the_first() -> None:
    one = series("XY", num_bars=30)
    one["close"][3] = one["high"][3] + 1
    one["open"][3] = one["open"][7] = one["low"][3] / 2

    (odd,) = prepared(job(one))

    assert odd.warnings == (
        "2 bars have an open or close outside low to high: "
        f"at {one['timestamps'][3]}, close {one['close'][3]} is above the high of the same bar",
    )


def test_one_value_a_bar_is_named_and_has_no_events_but_of_the_close() -> None:
    rate = series() | {name: [4.25 + bar / 64 for bar in range(30)] for name in PRICE_COLUMNS}
    wanted = job(rate) | {"output": {"events": ["close>last at end"]}}

    (one,) = prepared(wanted)

    assert one.warnings[0].startswith("Each bar has one value, which is its open, high, low and close.")
    error = refusal_of(wanted | {"output": {"events": ["close>last at end", "high>=5 by end"]}})
    assert (error.code, error.field) == ("BAD_VALUE", "output.events.1")
    assert "asks for the high" in error.message
    below = rate | {name: [-value for value in rate[name]] for name in PRICE_COLUMNS}
    error = refusal_of(job(below))
    assert (error.code, error.field) == ("NON_POSITIVE_PRICE", "series.0.open")
    assert "rates and other values of 0 or below cannot be forecast" in error.message


def test_seeds_follow_from_the_jobs() -> None:
    several = prepared(job(series("a"), series("b"), series("c", seed=5), sampling={"seed": 42}))

    assert [one.seed for one in several] == [42, derive_series_seed(42, 1), 5]


def test_without_a_seed_it_follows_from_the_jobs_id() -> None:
    first, second = prepared(job(series("a"), series("b")), "an id")

    assert first.seed == seed_from_text("an id")
    assert second.seed == derive_series_seed(seed_from_text("an id"), 1)
    assert prepared(job(), "another id")[0].seed != first.seed


def changed(values: list[Any], row: int, value: object) -> list[Any]:
    return [*values[:row], value, *values[row + 1 :]]


TEN, TIMES, NAN = [10.0] * 30, timestamps(30), float("nan")
ZULU = {"timestamps": timestamps(30, suffix="Z")}
DEFECTS: list[tuple[dict[str, Any], str, str, int | None]] = [
    *(({name: changed(TEN, 12, NAN)}, "NOT_FINITE", name, 12) for name in COLUMNS),
    *(({name: changed(TEN, 12, float("-inf"))}, "NOT_FINITE", name, 12) for name in ("close", "volume")),
    ({"close": encode_column(changed(TEN, 12, float("inf")))}, "NOT_FINITE", "close", 12),
    *(({name: changed(TEN, 29, 0)}, "NON_POSITIVE_PRICE", name, 29) for name in PRICE_COLUMNS),
    ({"open": changed(TEN, 29, -3.5)}, "NON_POSITIVE_PRICE", "open", 29),
    ({"high": changed(series()["high"], 7, 1.0)}, "HIGH_BELOW_LOW", "high", 7),
    ({"volume": changed(TEN, 29, -1.0)}, "NEGATIVE_VOLUME", "volume", 29),
    ({"amount": changed(TEN, 29, -1.0)}, "NEGATIVE_VOLUME", "amount", 29),
    *(({"close": changed(TEN, 29, huge)}, "VALUE_TOO_LARGE", "close", 29) for huge in (10**400, 1e39, 1e18)),
    ({"close": TEN[1:]}, "LENGTH_MISMATCH", "close", 29),
    ({"volume": encode_column([10.0] * 31)}, "LENGTH_MISMATCH", "volume", 30),
    ({"timestamps": TIMES[1:]}, "LENGTH_MISMATCH", "timestamps", 29),
    (series(num_bars=0) | {"id": "b"}, "EMPTY_SERIES", "open", None),
    *(({"low": text}, "BAD_ENCODING", "low", None) for text in ("%%%%", "AAAA", "AAAAAAA=")),
    ({"timestamps": changed(TIMES, 4, "yesterday")}, "BAD_TIMESTAMP", "timestamps", 4),
    ({"timestamps": changed(TIMES, 4, "2024-02-30")}, "BAD_TIMESTAMP", "timestamps", 4),
    ({"timestamps": changed(TIMES, 0, "")}, "BAD_TIMESTAMP", "timestamps", 0),
    ({"timestamps": changed(TIMES, 3, "2024-01-01" + "0" * 100_000)}, "BAD_TIMESTAMP", "timestamps", 3),
    ({"timestamps": changed(TIMES, 9, TIMES[8])}, "TIMESTAMPS_NOT_ASCENDING", "timestamps", 9),
    ({"timestamps": TIMES[::-1]}, "TIMESTAMPS_NOT_ASCENDING", "timestamps", 1),
    ({"timestamps": changed(TIMES, 9, TIMES[9] + "Z")}, "MIXED_TIMEZONES", "timestamps", 9),
    (ZULU | {"timezone": "Asia/Tokyo"}, "TIMEZONE_MISMATCH", "timestamps", 0),
    ({"timezone": "Mars/Base"}, "TIMEZONE_UNKNOWN", "timezone", None),
    *(
        ({"future_timestamps": future}, code, "future_timestamps", row)
        for future, code, row in (
            (["2024-01-05", "2024-01-06", "x"], "BAD_TIMESTAMP", 2),
            (["2024-01-05", "2024-01-07", "2024-01-06"], "TIMESTAMPS_NOT_ASCENDING", 2),
            (["2024-01-02T05:00:00", "2024-01-06", "2024-01-07"], "TIMESTAMPS_NOT_ASCENDING", 0),
            (["2024-01-05", "2024-01-06T00:00Z", "2024-01-07"], "MIXED_TIMEZONES", 1),
            (["2024-01-05T00:00Z", "2024-01-06T00:00Z", "2024-01-07T00:00Z"], "MIXED_TIMEZONES", 0),
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "code", "field", "row"), DEFECTS)
def test_a_defect_is_named_with_its_field_and_row(changes, code, field, row) -> None:
    error = refusal_of(job(series("a"), series("b") | changes, pred_len=3))

    assert (error.code, error.field, error.details.get("row")) == (code, f"series.1.{field}", row)


def test_base64_counts_against_the_limit_of_bars() -> None:
    error = refusal_of(job(series(num_bars=30, close=encode_column([1.0] * 31))), Limits(max_bars=30))

    assert (error.code, error.field) == ("LIMIT_EXCEEDED", "series.0.close")
    assert error.details == {"limit": 30, "actual": 31}


def test_what_cannot_be_inferred_is_refused() -> None:
    error = refusal_of(job(series(num_bars=2)))

    assert (error.code, error.field) == ("CANNOT_INFER_TIMESTAMPS", "series.0.future_timestamps")
    assert "give them, or a longer lookback" in error.message


def test_another_defect_keeps_its_row_where_missing_bars_are_dropped() -> None:
    error = refusal_of(job(series(close=changed(TEN, 3, None), low=changed(TEN, 20, -1.0)), missing="drop"))

    assert (error.code, error.field, error.details) == ("NON_POSITIVE_PRICE", "series.0.low", {"row": 20})


def test_missing_bars_are_refused_filled_or_dropped_with_their_number() -> None:
    nan = float("nan")
    gapped = series(close=[nan, *series()["close"][1:-2], nan, series()["close"][-1]])
    packed = gapped | {name: encode_column(gapped[name]) for name in PRICE_COLUMNS}
    nulls = gapped | {"close": [None if value != value else value for value in gapped["close"]]}

    assert (refusal_of(job(packed)).code, refusal_of(job(packed)).details) == ("NOT_FINITE", {"row": 0})
    assert refusal_of(job(nulls)).code == "NOT_FINITE"
    assert refusal_of(job(nulls)).message.endswith('drop the bar, or set missing to "ffill" or "drop"')
    for sent in (packed, nulls):
        (filled,), (dropped,) = (prepared(job(sent, missing=how)) for how in ("ffill", "drop"))
        assert (len(filled.stamps), len(dropped.stamps)) == (29, 28)
        assert filled.bars[-2, CLOSE] == filled.bars[-3, CLOSE]
        assert filled.warnings[0].startswith("Without prices: 1 of 30 bars. They have")
        assert dropped.warnings[0].startswith("Without prices: 2 of 30 bars. They are left out")
        assert filled.future_timestamps == dropped.future_timestamps
        assert not filled.bars.flags.writeable


@pytest.mark.parametrize(
    ("missing", "num_bars", "warning"),
    [
        ("error", 28, "Bars that are not there: 2, the first after 2024-01-01T09:00:00."),
        ("ffill", 30, "Bars that were not there: 2."),
    ],
)
def test_bars_that_are_not_there_are_counted_or_added(missing, num_bars, warning) -> None:
    whole = series()
    gapped = whole | {
        name: values[:10] + values[11:20] + values[21:]
        for name, values in whole.items()
        if isinstance(values, list)
    }
    (found,) = prepared(job(gapped, missing=missing))
    assert len(found.bars) == len(found.stamps) == num_bars
    assert found.warnings[0].startswith(warning)
    assert not prepared(job(whole, missing=missing))[0].warnings
