from collections.abc import Callable
from datetime import datetime, timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kronos_model.bars.columns import time_features
from kronos_model.bars.timestamps import (
    Timestamps,
    _read_alike,
    _read_each,
    check_continues,
    load_timezone,
    parse_timestamps,
    write_like,
)
from kronos_model.errors import TimestampError


def refusal_of(*texts: str, zone: str | None = None) -> TimestampError:
    with pytest.raises(TimestampError) as caught:
        parse_timestamps(texts, zone=None if zone is None else load_timezone(zone))
    return caught.value


def wall_of(stamps: Timestamps) -> list[str]:
    return [str(text) for text in stamps.wall.astype("datetime64[s]")]


@pytest.mark.parametrize(
    ("text", "wall"),
    [
        ("2024-06-18", "2024-06-18T00:00:00.000000"),
        ("2024-06-18 09:35", "2024-06-18T09:35:00.000000"),
        ("2024-06-18T09:35:10", "2024-06-18T09:35:10.000000"),
        ("2024-06-18T09:35:10.5", "2024-06-18T09:35:10.500000"),
        ("2024-06-18T09:35:10,25+08:00", "2024-06-18T09:35:10.250000"),
        ("2024-06-18T09:35:10.123456789", "2024-06-18T09:35:10.123456"),
        ("2024-06-18T09:35Z", "2024-06-18T09:35:00.000000"),
        ("2024-06-18 09:35:00+0800", "2024-06-18T09:35:00.000000"),
        ("2024-06-18 09:35:00-03", "2024-06-18T09:35:00.000000"),
    ],
)
def test_the_wall_clock_is_read_as_written(text: str, wall: str) -> None:
    assert str(parse_timestamps([text]).wall[0]) == wall


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "now", "NaT", "2024-13-01", "2024-02-30", "2023-02-29", "2024-06-18T25:00", "2024-06-18T09",
        "20240618", "20240618T0935", "2024-W25-2", "18.06.2024", "06/18/2024", "2024-06-18x09:35",
        "2024-06-18  09:35", " 2024-06-18", "2024-06-18\n", "1718673300", "٢٠٢٤-٠٦-١٨",
        "2024-06-18T09:35+25:00", "2024-06-18T09:35 +08:00", "2024-06-18T09:35:00 Europe/Berlin",
        "0000-01-01", "\ud800", "2024-06-18T09:35:60", "2024-06-18T09:35.5", "2024-06-18T09:35.5Z",
    ],
)  # fmt: skip
def test_a_text_that_is_no_timestamp_is_refused_with_its_row(text: str) -> None:
    error = refusal_of("2024-01-01", text)

    assert (error.code, error.field, error.details) == ("BAD_TIMESTAMP", "timestamps", {"row": 1})
    assert "row 1" in error.message


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_reading_many_equals_reading_each(data: st.DataObject) -> None:
    """All written alike, or one of them in another form or wrong."""
    second = "%Y-%m-%dT%H:%M:%S"
    forms = ["%Y-%m-%d", "%Y-%m-%d %H:%M", second, f"{second}.%f", f"{second}.%f789"]
    form = data.draw(st.sampled_from(forms))
    alike = [[""], ["Z"], ["+08:00", "+00:00", "+12:45"], ["-0330", "-0400"], ["+01"]]
    offsets = st.sampled_from(data.draw(st.sampled_from(alike)) if "%H" in form else [""])
    times = data.draw(st.lists(st.datetimes(min_value=datetime(1000, 1, 1)), min_size=1, max_size=6))
    texts = [time.strftime(form) + data.draw(offsets) for time in times]
    odd = st.sampled_from(["2024-02-30", "0000-01-01", "", "2024-06-18T09:35:10.5", "a\nb", texts[0] + "\n"])
    place = data.draw(st.integers(0, len(texts[0]) - 1))
    changed = st.sampled_from("0123456789-+:.,TZ \n\0é").map(
        lambda char: texts[0][:place] + char + texts[0][place + 1 :]
    )
    if data.draw(st.booleans()):
        texts.insert(data.draw(st.integers(0, len(texts))), data.draw(odd | changed))

    def reading(parse: Callable[[list[str]], Timestamps]) -> tuple[object, ...]:
        try:
            stamps = parse(texts)
        except TimestampError as error:
            return error.code, error.field, error.details
        return stamps.texts, stamps.wall.tolist(), stamps.is_aware and stamps.offsets_s.tolist()

    at_once = _read_alike(texts)
    if at_once is not None:
        assert reading(lambda _: at_once) == reading(lambda given: _read_each(given, "timestamps"))
    else:
        assert len(set(map(len, texts))) > 1 or len(texts) > len(times)


def test_a_refusal_does_not_echo_a_long_text() -> None:
    assert len(refusal_of("9" * 100_000).message) < 200


@pytest.mark.parametrize(
    ("texts", "zone", "code", "row"),
    [
        (["2024-01-01", 20240102], None, "BAD_TIMESTAMP", 1),
        (["2024-01-01", "2024-01-02", "2024-01-02", "2024-01-04"], None, "TIMESTAMPS_NOT_ASCENDING", 2),
        (["2024-01-01", "2024-01-02", "2024-01-01 23:59", "2024-01-04"], None, "TIMESTAMPS_NOT_ASCENDING", 2),
        (["2024-01-01T05:00Z", "2024-01-01T12:00+08:00"], None, "TIMESTAMPS_NOT_ASCENDING", 1),
        (["2024-01-01T00:00", "2024-01-01T01:00Z"], None, "MIXED_TIMEZONES", 1),
        (["2024-01-01T00:00Z", "2024-01-01T01:00+00:00", "2024-01-01T02:00"], None, "MIXED_TIMEZONES", 2),
        (["2024-01-01T00:00+08:00", "2024-01-02"], None, "MIXED_TIMEZONES", 1),
        (["2024-07-01T10:00-04:01", "2024-07-01T11:00-04:00"], "America/New_York", "TIMEZONE_MISMATCH", 0),
        (["2024-07-01T10:00-04:00", "2024-07-01T11:00-04:01"], "America/New_York", "TIMEZONE_MISMATCH", 1),
        (["2024-07-01T11:00-04:00", "2024-07-01T12:00-05:00"], "America/New_York", "TIMEZONE_MISMATCH", 1),
    ],
)  # fmt: skip
def test_texts_that_make_no_series_are_refused_with_the_row(texts, zone, code, row) -> None:
    error = refusal_of(*texts, zone=zone)
    assert (error.code, error.field, error.details) == (code, "timestamps", {"row": row})


def test_with_offsets_the_order_is_by_instant() -> None:
    stamps = parse_timestamps(["2024-01-01T12:00+08:00", "2024-01-01T05:00Z"])  # 04:00Z, 05:00Z
    assert wall_of(stamps) == ["2024-01-01T12:00:00", "2024-01-01T05:00:00"]


@pytest.mark.parametrize(
    ("texts", "hours"),
    [
        (["2024-11-03T00:30-04:00", "2024-11-03T01:30-04:00", "2024-11-03T01:30-05:00"], [0, 1, 1]),
        (["2024-03-10T00:30-05:00", "2024-03-10T01:30-05:00", "2024-03-10T03:30-04:00"], [0, 1, 3]),
    ],
    ids=["clocks go back", "clocks go forward"],
)
def test_with_offsets_only_the_wall_clock_jumps(texts: list[str], hours: list[int]) -> None:
    stamps = parse_timestamps(texts, zone=load_timezone("America/New_York"))
    assert [hour for _, hour, *_ in time_features(stamps.wall).tolist()] == hours
    assert np.all(np.diff(stamps.instants) == np.timedelta64(1, "h"))


def test_a_repeated_hour_is_refused_without_offsets() -> None:
    error = refusal_of("2024-11-03T00:30", "2024-11-03T01:30", "2024-11-03T01:30", "2024-11-03T02:30")

    assert (error.code, error.details) == ("TIMESTAMPS_NOT_ASCENDING", {"row": 2})
    assert "offsets" in error.message


@pytest.mark.parametrize(
    "name",
    [
        "", "Mars/Base", "Europe", "../etc/passwd", "/etc/passwd", "EST+99:00", "Asia/Tokyo\n", "a" * 999,
        "\ud800",
    ],
)  # fmt: skip
def test_an_unknown_zone_is_refused(name: str) -> None:
    with pytest.raises(TimestampError) as caught:
        load_timezone(name)

    assert (caught.value.code, caught.value.field) == ("TIMEZONE_UNKNOWN", "timezone")
    assert len(caught.value.message) < 200


@pytest.mark.parametrize("name", ["UTC", "Asia/Shanghai", "America/Argentina/Buenos_Aires", "Etc/GMT+5"])
def test_iana_zones_are_known(name: str) -> None:
    assert str(load_timezone(name)) == name


@pytest.mark.parametrize(
    ("lookback", "future", "code"),
    [
        ("2024-01-02", "2024-01-02", "TIMESTAMPS_NOT_ASCENDING"),
        ("2024-01-02", "2024-01-01", "TIMESTAMPS_NOT_ASCENDING"),
        ("2024-01-02T00:00Z", "2024-01-02T07:00+08:00", "TIMESTAMPS_NOT_ASCENDING"),
        ("2024-01-02", "2024-01-03T00:00Z", "MIXED_TIMEZONES"),
        ("2024-01-02T00:00Z", "2024-01-03", "MIXED_TIMEZONES"),
    ],
)
def test_future_timestamps_must_continue_the_lookback(lookback: str, future: str, code: str) -> None:
    with pytest.raises(TimestampError) as caught:
        check_continues(parse_timestamps([lookback]), parse_timestamps([future]))

    assert (caught.value.code, caught.value.field) == (code, "future_timestamps")
    assert caught.value.details == {"row": 0}


def test_future_timestamps_after_the_last_bar_are_fine() -> None:
    check_continues(parse_timestamps(["2024-01-02T00:00Z"]), parse_timestamps(["2024-01-01T23:00-02:00"]))


DAY, HALF_PAST = ["2024-02-01"], ["2024-02-01T09:30"]


@pytest.mark.parametrize(
    ("example", "times", "offset_s", "written"),
    [
        ("2024-01-31", HALF_PAST, None, ["2024-02-01T09:30"]),
        ("2024-01-31 09:25", HALF_PAST, None, ["2024-02-01 09:30"]),
        ("2024-01-31T09:25:00", HALF_PAST, None, ["2024-02-01T09:30:00"]),
        ("2024-01-31T09:25:00.000", HALF_PAST, None, ["2024-02-01T09:30:00.000"]),
        ("2024-01-31T09:25:00.000000000", HALF_PAST, None, ["2024-02-01T09:30:00.000000000"]),
        ("2024-01-31", DAY, None, DAY),
        # No digit is lost.
        ("2024-01-31", ["2024-02-01T00:00:00.25", "2024-02-01T00:00:00.5"], None,
         ["2024-02-01T00:00:00.25", "2024-02-01T00:00:00.50"]),
        *(
            (f"2024-01-31 00:00:00{style}", HALF_PAST, offset_s, [f"2024-02-01 09:30:00{written}"])
            for style, offset_s, written in (
                ("Z", 0, "Z"), ("Z", 3600, "+01:00"), ("+00:00", 0, "+00:00"), ("+08:00", -12600, "-03:30"),
                ("+0800", 19800, "+0530"), ("-05", -14400, "-04"), ("-05", 19800, "+05:30"),
                ("+08:00", 29143, "+08:05:43"),
            )
        ),
    ],
)  # fmt: skip
def test_times_are_written_in_the_form_of_the_input(example, times, offset_s, written) -> None:
    offsets_s = None if offset_s is None else np.full(len(times), offset_s)
    assert list(write_like(example, np.array(times, dtype="datetime64[us]"), offsets_s)) == written


@settings(deadline=None)
@given(
    start=st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1)),
    step_us=st.integers(1, 10**12),
    separator=st.sampled_from("T "),
    offset=st.sampled_from(["", "Z", "+08:00", "-0330", "+05"]),
)
def test_written_times_are_read_as_the_same_times(
    start: datetime, step_us: int, separator: str, offset: str
) -> None:
    times = [start + n * timedelta(microseconds=step_us) for n in range(4)]
    stamps = parse_timestamps([time.isoformat(separator) + offset for time in times])

    again = parse_timestamps(write_like(stamps.texts[0], stamps.wall, stamps.offsets_s))

    assert np.array_equal(again.wall, stamps.wall)
    assert np.array_equal(again.instants, stamps.instants)
    assert all(separator in text and text.endswith(offset) for text in again.texts)
