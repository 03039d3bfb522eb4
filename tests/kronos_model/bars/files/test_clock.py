from datetime import datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kronos_model.bars.files.clock import Clock, ClockError, read_clock
from kronos_model.bars.timestamps import load_timezone, parse_timestamps
from kronos_model.errors import TimestampError


def clock_of(*values: object, kind: pa.DataType | None = None) -> Clock:
    return read_clock(pa.chunked_array([pa.array(list(values), type=kind)]))


def texts_of(times: np.ndarray) -> list[str]:
    return [str(time) for time in times.astype("datetime64[s]")]


ODD = [
    "", "x", "NaT", "2024-02-30", "2024-13-01", "20240618", "2024-06-18T09", "2024-06-18 09:35:60",
    "2024-06-18T24:00", "2024-06-18.5", "2024-06-18Z", "2024-06-18+08:00", "0000-01-01",
    "0001-01-01", "9999-12-31 23:59:59", "2024-06-18T09:35:10,25", "2024-06-18 09:35:00.123456789",
    "1718673300", "18.06.2024", "06/18/2024",
]  # fmt: skip
ODD_AWARE = [
    "2024-06-18T09:35+25:00",
    "2024-06-18T09:35Z",
    "2024-06-18 09:35:10.5-03",
    "2024-06-18 09:35 +08:00",
]


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_texts_are_read_like_the_timestamps_of_a_forecast(data: st.DataObject) -> None:
    """Cell by cell; a text that a forecast refuses is no time here."""
    is_aware = data.draw(st.booleans())
    offsets = st.sampled_from(["Z", "+08:00", "-0330", "+01", "+00:00"] if is_aware else [""])
    forms = st.sampled_from(["%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S.%f"])
    written = st.builds(
        lambda time, form, offset: time.strftime(form) + offset,
        st.datetimes(min_value=datetime(1000, 1, 1)),
        forms,
        offsets,
    )
    texts = data.draw(st.lists(written | st.sampled_from(ODD_AWARE if is_aware else ODD), max_size=8))
    texts += ["2024-06-18T09:35Z" if is_aware else "2024-06-18"] * len(texts)  # most decide the form

    clock = read_clock(pa.chunked_array([pa.array(texts, type=pa.string())]))

    walls, instants = [], []
    for text in texts:
        try:
            stamp = parse_timestamps([text])
        except TimestampError:
            walls.append("NaT")
            instants.append("NaT")
        else:
            walls.append(str(stamp.wall[0]))
            instants.append(str(stamp.instants[0]))
    assert clock.wall.astype(str).tolist() == walls
    assert clock.instants.astype(str).tolist() == instants
    assert clock.is_aware == (is_aware if any(wall != "NaT" for wall in walls) else None)


def test_the_wall_clock_stays_as_written_as_clocks_go_back() -> None:
    clock = clock_of("2024-11-03T01:30:00-04:00", "2024-11-03T01:30:00-05:00", "2024-11-03T02:30:00-05:00")

    assert texts_of(clock.wall) == ["2024-11-03T01:30:00", "2024-11-03T01:30:00", "2024-11-03T02:30:00"]
    assert texts_of(clock.instants) == ["2024-11-03T05:30:00", "2024-11-03T06:30:00", "2024-11-03T07:30:00"]


def test_a_zone_of_parquet_gives_its_wall_clock() -> None:
    times = pd.to_datetime(["2024-11-03T05:30Z", "2024-11-03T06:30Z", None]).tz_convert("America/New_York")
    clock = read_clock(pa.chunked_array([pa.array(times)]))

    assert texts_of(clock.wall) == ["2024-11-03T01:30:00", "2024-11-03T01:30:00", "NaT"]
    assert texts_of(clock.instants) == ["2024-11-03T05:30:00", "2024-11-03T06:30:00", "NaT"]
    assert clock.is_aware is True


@pytest.mark.parametrize("kind", [pa.timestamp("s"), pa.timestamp("ns"), pa.date32(), pa.date64()])
def test_times_without_a_zone_are_the_wall_clock(kind: pa.DataType) -> None:
    clock = clock_of(datetime(2024, 6, 18), None, kind=kind)

    assert texts_of(clock.wall) == texts_of(clock.instants) == ["2024-06-18T00:00:00", "NaT"]
    assert clock.is_aware is False


def test_integers_and_floats_are_seconds_since_1970() -> None:
    for clock in (clock_of(1718673300, 17, None), clock_of(1718673300.0, 17.5, None)):
        assert texts_of(clock.wall) == ["2024-06-18T01:15:00", "NaT", "NaT"]
        assert clock.is_aware is True


def test_times_with_and_without_offsets_are_not_mixed() -> None:
    with pytest.raises(ClockError, match="with an offset and times without"):
        clock_of("2024-06-18T09:35Z", "2024-06-18T09:36")


def test_a_zone_may_be_an_offset() -> None:
    clock = clock_of(datetime(2024, 6, 18), kind=pa.timestamp("ms", "+05:30"))

    assert texts_of(clock.wall) == ["2024-06-18T05:30:00"]
    assert texts_of(clock.instants) == ["2024-06-18T00:00:00"]


@pytest.mark.parametrize(
    ("form", "offsets"),
    [
        ("%Y%m%d %H:%M:%S US/Eastern", ("", "", "")),  # Interactive Brokers'
        ("%Y-%m-%dT%H:%M{}[US/Eastern]", ("-04:00", "-05:00", "-05:00")),  # RFC 9557
        ("%Y%m%d  %H:%M:%S US/Eastern", ("", "", "")),
        ("%d.%m.%Y %H:%M US/Eastern", ("", "", "")),
    ],
)
@pytest.mark.parametrize("step", [1, -1], ids=["oldest first", "newest first"])
def test_texts_may_name_their_zone(form: str, offsets: tuple[str, ...], step: int) -> None:
    """The hour that comes twice is the second one the second time."""
    times = [datetime(2024, 11, 3, hour, 30) for hour in (1, 1, 2)]
    texts = [time.strftime(form).format(offset) for time, offset in zip(times, offsets, strict=True)]
    clock = clock_of(*texts[::step])

    assert texts_of(clock.instants[::step]) == [f"2024-11-03T0{hour}:30:00" for hour in (5, 6, 7)]
    assert texts_of(clock.wall[::step]) == [f"2024-11-03T0{hour}:30:00" for hour in (1, 1, 2)]
    assert (clock.is_aware, clock.zone) == (True, "US/Eastern")
    written = parse_timestamps(clock.texts(np.arange(len(texts))[::step]), zone=load_timezone("US/Eastern"))
    assert np.array_equal(written.instants, clock.instants[::step])


def test_a_zone_that_a_file_names_is_known() -> None:
    kinds = {"Europe/Berlin": "Europe/Berlin", "UTC": "UTC", "+05:30": None}
    for zone, expected in kinds.items():
        assert clock_of(datetime(2024, 6, 18), kind=pa.timestamp("ms", zone)).zone == expected
    skipped = clock_of("2024-03-31 02:30 Europe/Berlin", "2024-03-31 03:30 Europe/Berlin", "")
    assert texts_of(skipped.instants) == ["NaT", "2024-03-31T01:30:00", "NaT"]
    assert np.isnat(clock_of("2024-03-31 03:30 Europe/Berlin", "2024-03-31 04:30").wall).tolist() == [
        False,
        True,
    ]
    with pytest.raises(ClockError, match="times in Europe/Berlin and in Europe/Paris: write one file"):
        clock_of("2024-03-31 03:30 Europe/Berlin", "2024-03-31 03:45 Europe/Paris")
    with pytest.raises(ClockError, match="times in 'Mars/Base', which is no IANA"):
        clock_of("2024-03-31 03:30 Mars/Base")
    assert np.isnat(clock_of("1 A1/B1" * 5000).wall).all()


@pytest.mark.parametrize("zone", ["Nowhere/At_All", "America", "../etc"])
def test_an_unknown_zone_is_refused(zone: str) -> None:
    with pytest.raises(ClockError, match="no IANA time zone"):
        clock_of(datetime(2024, 6, 18), kind=pa.timestamp("ms", zone))


def test_a_fraction_of_a_minute_is_no_time() -> None:
    assert texts_of(clock_of("2024-06-18T09:35.5", "2024-06-18T09:36").wall) == ["NaT", "2024-06-18T09:36:00"]


@pytest.mark.parametrize("is_newest_first", [False, True])
def test_times_with_the_name_of_their_zone_are_told_apart_as_clocks_go_back(is_newest_first: bool) -> None:
    hours = ["00:30", "01:30", "01:30", "02:30"]
    texts = [f"20241103  {hour}:00 US/Eastern" for hour in (hours[::-1] if is_newest_first else hours)]
    clock = clock_of(*texts)

    expected = [
        f"2024-11-03T{hour}"
        for hour in ("00:30:00-04:00", "01:30:00-04:00", "01:30:00-05:00", "02:30:00-05:00")
    ]
    assert sorted(clock.texts(np.arange(4)), key=expected.index) == expected
    assert np.all(
        np.diff(clock.instants[:: -1 if is_newest_first else 1]).astype("timedelta64[h]").astype(int) == 1
    )
    assert (clock.zone, clock.is_aware) == ("US/Eastern", True)


def test_a_zone_that_is_none_is_refused() -> None:
    with pytest.raises(ClockError, match="'Mars/Olympus', which is no IANA time zone"):
        clock_of("20241103 01:30:00 Mars/Olympus")
