"""From what apps hold to a series of the wire."""

from datetime import UTC, date, datetime, timedelta, timezone

import numpy as np
import pandas as pd
import pytest

from kronos_model.candles import COLUMNS
from kronos_model.synthetic import candles
from worker.contract.columns import decode_column
from worker.contract.errors import ErrorCode, JobError
from worker.series import TIMESTAMP_NAMES, series_payload

CANDLES = candles(seed=1, bars=5)
TEXTS = list(CANDLES.timestamps)


def mapping(**changes: object) -> dict[str, object]:
    return {**CANDLES.as_dict(), **changes}


class ColumnarFrame:
    """As polars and its like: names in ``columns``, columns by name, no index."""

    def __init__(self, columns: dict[str, object]) -> None:
        self._columns = columns
        self.columns = list(columns)

    def __getitem__(self, name: str) -> object:
        return self._columns[name]


def assert_columns(payload: dict[str, object]) -> None:
    for name in COLUMNS:
        np.testing.assert_allclose(decode_column(payload[name]), CANDLES.columns[name], rtol=1e-6)


SOURCES = {
    "mapping of arrays": mapping(),
    "mapping of lists": {name: list(values) for name, values in mapping().items()},
    "pandas": pd.DataFrame(mapping()),
    "pandas with other columns": pd.DataFrame(mapping(symbol="600000", vwap=np.nan)),
    "pandas with capitals": pd.DataFrame(mapping()).rename(columns=str.title),
    "polars-like": ColumnarFrame(mapping()),
}


@pytest.mark.parametrize("source", SOURCES)
def test_every_kind_of_source_gives_the_same_series(source):
    payload = series_payload(SOURCES[source], "x")
    assert payload.keys() == {"id", "timestamps", *COLUMNS}
    assert payload["id"] == "x"
    assert payload["timestamps"] == TEXTS
    assert_columns(payload)


@pytest.mark.parametrize("name", TIMESTAMP_NAMES)
def test_timestamps_are_found_under_each_of_their_names(name):
    frame = pd.DataFrame(mapping()).rename(columns={"timestamps": name.upper()})
    assert series_payload(frame, "x")["timestamps"] == TEXTS


def test_a_datetime_index_is_taken_where_no_column_has_the_times():
    frame = pd.DataFrame(mapping()).set_index("timestamps")
    frame.index = pd.to_datetime(frame.index)
    assert series_payload(frame, "x")["timestamps"] == TEXTS
    aware = series_payload(frame.tz_localize("Asia/Shanghai"), "x")["timestamps"]
    assert aware == [f"{text}+08:00" for text in TEXTS]


def test_the_argument_comes_before_the_columns():
    texts = [f"2024-01-0{day}" for day in range(1, 6)]
    assert series_payload(mapping(), "x", timestamps=texts)["timestamps"] == texts


FIRST = datetime(2024, 3, 1, 9, 35)


@pytest.mark.parametrize(
    ("given", "written"),
    [
        (["2024-03-01 09:35"], ["2024-03-01 09:35"]),
        ([FIRST], ["2024-03-01T09:35:00"]),
        ([FIRST.replace(tzinfo=UTC)], ["2024-03-01T09:35:00+00:00"]),
        ([FIRST.replace(tzinfo=timezone(timedelta(hours=-5)))], ["2024-03-01T09:35:00-05:00"]),
        ([date(2024, 3, 1)], ["2024-03-01"]),
        ([np.datetime64(FIRST, "ns")], ["2024-03-01T09:35:00"]),
        (np.array([FIRST], dtype="datetime64[ns]"), ["2024-03-01T09:35:00"]),
        (np.array([FIRST], dtype="datetime64[m]"), ["2024-03-01T09:35:00"]),
        (np.array(["2024-03-01T09:35:00.5"], dtype="datetime64[ns]"), ["2024-03-01T09:35:00.500000"]),
        ([np.datetime64("NaT")], ["NaT"]),
        (pd.Series([FIRST]), ["2024-03-01T09:35:00"]),
        (pd.DatetimeIndex([FIRST], tz="America/New_York"), ["2024-03-01T09:35:00-05:00"]),
        ((time for time in [FIRST]), ["2024-03-01T09:35:00"]),
    ],
)
def test_times_of_every_kind_are_written_as_iso_8601(given, written):
    assert series_payload(mapping(), "x", future_timestamps=given)["future_timestamps"] == written


@pytest.mark.parametrize("value", [1, 1.5, None, ("2024-03-01",)])
def test_what_is_no_time_is_refused(value):
    with pytest.raises(JobError) as refused:
        series_payload(mapping(), "x", timestamps=[value])
    assert (refused.value.code, refused.value.field) == (ErrorCode.BAD_TIMESTAMP, "timestamps")


def test_candles_without_times_are_refused_with_the_ways_to_give_them():
    frame = pd.DataFrame(CANDLES.columns)  # its index counts rows
    for source in (frame, dict(CANDLES.columns), ColumnarFrame(CANDLES.columns)):
        with pytest.raises(JobError, match="DatetimeIndex") as refused:
            series_payload(source, "x")
        assert (refused.value.code, refused.value.field) == (ErrorCode.MISSING_FIELD, "timestamps")


@pytest.mark.parametrize("values", [["a"] * 5, [[1], [1, 2]], [object()] * 5])
def test_a_column_that_is_not_numbers_is_refused_by_name(values):
    with pytest.raises(JobError) as refused:
        series_payload(mapping(close=values), "x")
    assert (refused.value.code, refused.value.field) == (ErrorCode.BAD_TYPE, "close")


@pytest.mark.filterwarnings("error")
def test_what_float32_cannot_hold_becomes_infinite_quietly():
    payload = series_payload(mapping(close=[1e300] * 5), "x")
    assert np.isinf(decode_column(payload["close"])).all()


def test_optional_parts_are_sent_only_where_given():
    payload = series_payload(mapping(), "x", timezone="Asia/Shanghai", seed=0)
    assert (payload["timezone"], payload["seed"]) == ("Asia/Shanghai", 0)
    without = mapping()
    del without["volume"], without["amount"]
    assert series_payload(without, "x").keys() == {"id", "timestamps", "open", "high", "low", "close"}
