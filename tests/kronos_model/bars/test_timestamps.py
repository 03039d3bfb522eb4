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
    exists_in,
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


def test_values_that_are_no_text_are_refused() -> None:
    with pytest.raises(TimestampError) as caught:
        parse_timestamps(["2024-01-01", 20240102])  # type: ignore[list-item]

    assert (caught.value.code, caught.value.details) == ("BAD_TIMESTAMP", {"row": 1})


@pytest.mark.parametrize("late", ["2024-01-02", "2024-01-01 23:59"])
def test_wall_times_must_ascend_strictly(late: str) -> None:
    error = refusal_of("2024-01-01", "2024-01-02", late, "2024-01-04")

    assert (error.code, error.field, error.details) == ("TIMESTAMPS_NOT_ASCENDING", "timestamps", {"row": 2})


@pytest.mark.parametrize(
    ("texts", "row"),
    [
        (["2024-01-01T00:00", "2024-01-01T01:00Z"], 1),
        (["2024-01-01T00:00Z", "2024-01-01T01:00+00:00", "2024-01-01T02:00"], 2),
        (["2024-01-01T00:00+08:00", "2024-01-02"], 1),
    ],
)
def test_naive_and_aware_do_not_mix(texts: list[str], row: int) -> None:
    error = refusal_of(*texts)

    assert (error.code, error.field, error.details) == ("MIXED_TIMEZONES", "timestamps", {"row": row})


def test_with_offsets_the_order_is_by_instant() -> None:
    stamps = parse_timestamps(["2024-01-01T12:00+08:00", "2024-01-01T05:00Z"])  # 04:00Z, 05:00Z
    assert wall_of(stamps) == ["2024-01-01T12:00:00", "2024-01-01T05:00:00"]

    error = refusal_of("2024-01-01T05:00Z", "2024-01-01T12:00+08:00")
    assert (error.code, error.details) == ("TIMESTAMPS_NOT_ASCENDING", {"row": 1})


def test_a_repeated_hour_is_accepted_with_offsets() -> None:
    texts = [
        "2024-11-03T00:30-04:00",
        "2024-11-03T01:30-04:00",
        "2024-11-03T01:30-05:00",
        "2024-11-03T02:30-05:00",
    ]

    stamps = parse_timestamps(texts, zone=load_timezone("America/New_York"))

    assert [hour for _, hour, *_ in time_features(stamps.wall).tolist()] == [0, 1, 1, 2]
    assert np.all(np.diff(stamps.instants) == np.timedelta64(1, "h"))


def test_a_repeated_hour_is_refused_without_offsets() -> None:
    error = refusal_of("2024-11-03T00:30", "2024-11-03T01:30", "2024-11-03T01:30", "2024-11-03T02:30")

    assert (error.code, error.details) == ("TIMESTAMPS_NOT_ASCENDING", {"row": 2})
    assert "offsets" in error.message


def test_when_clocks_go_forward_only_the_wall_clock_jumps() -> None:
    texts = ["2024-03-10T00:30-05:00", "2024-03-10T01:30-05:00", "2024-03-10T03:30-04:00"]

    stamps = parse_timestamps(texts, zone=load_timezone("America/New_York"))

    assert [hour for _, hour, *_ in time_features(stamps.wall).tolist()] == [0, 1, 3]
    assert np.all(np.diff(stamps.instants) == np.timedelta64(1, "h"))


@pytest.mark.parametrize("row", [0, 1, 2])
def test_offsets_that_the_zone_does_not_have_are_refused(row: int) -> None:
    texts = ["2024-07-01T10:00-04:00", "2024-07-01T11:00-04:00", "2024-07-01T12:00-04:00"]
    texts[row] = texts[row].replace("-04:00", "-04:01" if row < 2 else "-05:00")

    error = refusal_of(*texts, zone="America/New_York")

    assert (error.code, error.field, error.details) == ("TIMEZONE_MISMATCH", "timestamps", {"row": row})


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Mars/Base",
        "Europe",
        "../etc/passwd",
        "/etc/passwd",
        "EST+99:00",
        "Asia/Tokyo\n",
        "a" * 999,
        "\ud800",
    ],
)
def test_an_unknown_zone_is_refused(name: str) -> None:
    with pytest.raises(TimestampError) as caught:
        load_timezone(name)

    assert (caught.value.code, caught.value.field) == ("TIMEZONE_UNKNOWN", "timezone")
    assert len(caught.value.message) < 200


@pytest.mark.parametrize("name", ["UTC", "Asia/Shanghai", "America/Argentina/Buenos_Aires", "Etc/GMT+5"])
def test_iana_zones_are_known(name: str) -> None:
    assert str(load_timezone(name)) == name


def test_hours_that_a_zone_skips_do_not_exist_in_it() -> None:
    zone = load_timezone("Europe/Berlin")

    assert not exists_in(zone, datetime(2024, 3, 31, 2, 30))
    assert exists_in(zone, datetime(2024, 3, 31, 3, 0))
    assert exists_in(zone, datetime(2024, 10, 27, 2, 30))


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


@pytest.mark.parametrize(
    ("example", "written"),
    [
        ("2024-01-31", "2024-02-01T09:30"),
        ("2024-01-31 09:25", "2024-02-01 09:30"),
        ("2024-01-31T09:25:00", "2024-02-01T09:30:00"),
        ("2024-01-31T09:25:00.000", "2024-02-01T09:30:00.000"),
        ("2024-01-31T09:25:00.000000000", "2024-02-01T09:30:00.000000000"),
    ],
)
def test_times_are_written_in_the_form_of_the_input(example: str, written: str) -> None:
    assert write_like(example, np.array(["2024-02-01T09:30"], dtype="datetime64[us]"), None) == (written,)


@pytest.mark.parametrize(
    ("example", "offset_s", "written"),
    [
        ("Z", 0, "Z"),
        ("Z", 3600, "+01:00"),
        ("+00:00", 0, "+00:00"),
        ("+08:00", -12600, "-03:30"),
        ("+0800", 19800, "+0530"),
        ("-05", -14400, "-04"),
        ("-05", 19800, "+05:30"),
        ("+08:00", 29143, "+08:05:43"),
    ],
)
def test_offsets_are_written_in_the_style_of_the_input(example: str, offset_s: int, written: str) -> None:
    wall = np.array(["2024-02-01T09:30"], dtype="datetime64[us]")

    (text,) = write_like(f"2024-01-31 00:00:00{example}", wall, np.array([offset_s]))

    assert text == f"2024-02-01 09:30:00{written}"


def test_a_day_stays_a_day() -> None:
    assert write_like("2024-01-31", np.array(["2024-02-01"], dtype="datetime64[us]"), None) == ("2024-02-01",)


def test_no_digit_is_lost() -> None:
    wall = np.array(["2024-02-01T00:00:00.25", "2024-02-01T00:00:00.5"], dtype="datetime64[us]")

    assert write_like("2024-01-31", wall, None) == ("2024-02-01T00:00:00.25", "2024-02-01T00:00:00.50")


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
