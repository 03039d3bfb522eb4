"""From what apps hold to a series of the wire."""

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import polars as pl
import pytest
import pytz

from kronos_client.contract.columns import decode_column
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.core.long_request import data_payload
from kronos_client.core.series import job_series, series_payload
from kronos_client.testing import FakeForecastClient
from kronos_model.bars.columns import COLUMNS, TIME_COLUMNS
from kronos_model.bars.synthetic import candles

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
    "pandas from yfinance": pd.concat({"AAPL": pd.DataFrame(mapping()).rename(columns=str.title)}, axis=1),
    "pandas from yfinance, prices first": pd.concat(
        {"AAPL": pd.DataFrame(mapping()).rename(columns=str.title)}, axis=1
    ).swaplevel(axis=1),
    "polars-like": ColumnarFrame(mapping()),
    "polars": pl.DataFrame(mapping()),
    "records": pd.DataFrame(mapping()).to_dict("records"),
    "records of texts, as csv.DictReader gives them": [
        {name: str(value) for name, value in record.items()}
        for record in pd.DataFrame(mapping()).to_dict("records")
    ],
}


@pytest.mark.parametrize("source", SOURCES)
def test_every_kind_of_source_gives_the_same_series(source):
    payload = series_payload(SOURCES[source], "x")
    assert payload.keys() == {"id", "timestamps", *COLUMNS}
    assert payload["id"] == "x"
    assert payload["timestamps"] == TEXTS
    assert_columns(payload)


@pytest.mark.parametrize("ticker", ["LOW", "OPEN", "VOLUME"])
@pytest.mark.parametrize("is_price_first", [False, True])
def test_tickers_may_be_spelt_as_columns(ticker, is_price_first):
    bars = pd.DataFrame(mapping()).set_index("timestamps").rename(columns=str.title)
    frame = pd.concat({ticker: bars.set_index(pd.to_datetime(bars.index))}, axis=1)
    frame = frame.swaplevel(axis=1) if is_price_first else frame
    for source in (frame, {ticker: frame}, frame.rename_axis(index="Date").reset_index()):
        (series,) = job_series(source)
        assert_columns(series)
        assert series["timestamps"] == TEXTS


@pytest.mark.parametrize("name", TIME_COLUMNS)
def test_timestamps_are_found_under_each_of_their_names(name):
    frame = pd.DataFrame(mapping()).rename(columns={"timestamps": name.upper()})
    assert series_payload(frame, "x")["timestamps"] == TEXTS


def test_columns_that_differ_only_in_case_are_refused():
    candles = {"open": [1.0], "high": [1.0], "low": [1.0], "close": [1.0], "Close": [50.0]}
    with pytest.raises(JobError, match="close and Close are both close: keep one") as refused:
        series_payload(candles | {"timestamps": ["2024-06-18"]}, "x")
    assert (refused.value.code, refused.value.field) == (ErrorCode.BAD_VALUE, "close")


def test_a_datetime_index_is_taken_where_no_column_has_the_times():
    frame = pd.DataFrame(mapping()).set_index("timestamps")
    frame.index = pd.to_datetime(frame.index)
    assert series_payload(frame, "x")["timestamps"] == TEXTS
    aware = series_payload(frame.tz_localize("Asia/Shanghai"), "x")["timestamps"]
    assert aware == [f"{text}+08:00" for text in TEXTS]


def test_polars_times_are_written_as_iso_8601():
    frame = pl.DataFrame(mapping()).with_columns(pl.col("timestamps").str.to_datetime())
    assert series_payload(frame, "x")["timestamps"] == TEXTS
    aware = frame.with_columns(pl.col("timestamps").dt.replace_time_zone("Asia/Shanghai"))
    assert series_payload(aware, "x")["timestamps"] == [f"{text}+08:00" for text in TEXTS]
    days = frame.with_columns(pl.date_range(date(2024, 3, 4), date(2024, 3, 8)).alias("timestamps"))
    assert series_payload(days, "x")["timestamps"] == [f"2024-03-0{day}" for day in range(4, 9)]


def test_a_gap_in_polars_is_told_by_the_contract_as_one_in_pandas():
    frame = pl.DataFrame(mapping()).with_columns(
        pl.when(pl.int_range(5) == 2).then(None).otherwise("close").alias("close")
    )
    assert np.isnan(decode_column(series_payload(frame, "x")["close"])).tolist() == [0, 0, 1, 0, 0]


RECORDS = pd.DataFrame(mapping()).to_dict("records")


def test_a_list_of_records_is_one_series_and_a_list_of_lists_several():
    (one,) = job_series(RECORDS)
    assert (one["id"], one["timestamps"]) == ("0", TEXTS)
    both = job_series([RECORDS, mapping()], ["a", "b"], None, None, None)
    assert [series["id"] for series in both] == ["a", "b"]
    assert [series["close"] for series in both] == [one["close"]] * 2
    assert len(job_series([mapping()])) == 1


FRAME = pd.DataFrame(mapping())


@pytest.mark.parametrize(
    "candles",
    [pd.DataFrame(), [], {}, pl.DataFrame(), FRAME.head(0), [FRAME, FRAME.head(0)], {"a": FRAME, "b": {}}],
)
def test_candles_without_a_bar_are_refused_as_that(candles):
    with pytest.raises(JobError) as refused:
        job_series(candles)
    assert (refused.value.code, refused.value.message) == (
        "EMPTY_SERIES",
        "the series has no bars: send some",
    )


def test_a_record_that_lacks_something_is_named_by_its_row():
    broken = [dict(record) for record in RECORDS]
    del broken[3]["close"]
    with pytest.raises(JobError) as refused:
        job_series(broken)
    assert (refused.value.code, refused.value.field) == (ErrorCode.MISSING_FIELD, "series.0.close")
    assert refused.value.details["row"] == 3


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


BERLIN = ZoneInfo("Europe/Berlin")
HOURS = pd.date_range("2024-03-30 12:00", periods=5, freq="h")


@pytest.mark.parametrize(
    ("times", "zone"),
    [
        (HOURS.tz_localize("Europe/Berlin"), "Europe/Berlin"),
        (HOURS.tz_localize(pytz.timezone("Europe/Berlin")), "Europe/Berlin"),
        (HOURS.tz_localize("dateutil/Europe/Berlin"), "Europe/Berlin"),
        (pd.Series(HOURS.tz_localize("US/Eastern")), "US/Eastern"),
        (
            pd.Series(HOURS.tz_localize("Asia/Tokyo")).astype("timestamp[us, tz=Asia/Tokyo][pyarrow]"),
            "Asia/Tokyo",
        ),
        (pl.Series(HOURS.to_list()).dt.replace_time_zone("America/New_York"), "America/New_York"),
        ([time.replace(tzinfo=BERLIN) for time in HOURS.to_pydatetime()], "Europe/Berlin"),
        ((pytz.timezone("Europe/Berlin").localize(time) for time in HOURS.to_pydatetime()), "Europe/Berlin"),
        (HOURS.tz_localize("UTC"), "UTC"),
        (HOURS.tz_localize("dateutil/UTC"), "UTC"),
        (HOURS.tz_localize(pytz.utc), "UTC"),
        (HOURS, None),
        (HOURS.tz_localize("+08:00"), None),
        (HOURS.tz_localize(pytz.FixedOffset(480)), None),
        ([time.replace(tzinfo=timezone(timedelta(hours=1))) for time in HOURS], None),
        ([HOURS[0].tz_localize("Europe/Paris"), *HOURS[1:].tz_localize(BERLIN)], None),  # not one zone
        ([time.isoformat() for time in HOURS.tz_localize(BERLIN)], None),
    ],
)  # fmt: skip
def test_the_zone_of_the_times_is_that_of_the_series(times, zone):
    payload = series_payload(mapping(), "x", timestamps=times)
    assert payload.get("timezone") == zone
    assert len(payload["timestamps"]) == 5


def test_the_zone_of_a_frame_is_sent_unless_another_is_given():
    frame = pd.DataFrame(mapping()).drop(columns="timestamps").set_index(HOURS.tz_localize(BERLIN))
    assert series_payload(frame, "x")["timezone"] == "Europe/Berlin"
    assert series_payload(frame.reset_index(names="date"), "x")["timezone"] == "Europe/Berlin"
    assert series_payload(frame, "x", timezone="Europe/Paris")["timezone"] == "Europe/Paris"
    assert "timezone" not in data_payload(frame)["instruments"][0]


@pytest.mark.parametrize("fit", [pd.DataFrame, pl.from_pandas], ids=["pandas", "polars"])
def test_a_forecast_goes_on_in_the_frames_zone(fit):
    """Over a change of clocks, in the result and in its frame."""
    times = pd.date_range("2017-10-25", "2017-10-28 22:00", freq="h", tz="Europe/Berlin", name="timestamps")
    bars = pd.DataFrame(candles(seed=1, bars=len(times)).columns, index=times)
    client = FakeForecastClient()
    (series,) = client.forecast(fit(bars.reset_index()), pred_len=5, sample_count=20).series
    later = pd.date_range("2017-10-28 23:00", periods=5, freq="h", tz="Europe/Berlin", name="timestamps")
    assert series.timestamps == tuple(time.isoformat() for time in later)
    pd.testing.assert_index_equal(series.frame().index, later.as_unit("us"), check_freq=False)
    long = bars.reset_index(names="ds").assign(unique_id="a")
    for frame in (long, long.astype({"ds": "timestamp[us, tz=Europe/Berlin][pyarrow]"})):
        found = client.predict_df(frame, pred_len=5, sample_count=20)["ds"]
        assert (list(found), str(found.dt.tz)) == (list(later), "Europe/Berlin")


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


def nested(depth: int) -> object:
    """A list in a list in a list."""
    values: object = 1.0
    for _ in range(depth):
        values = [values]
    return values


class Unreadable:
    """Raises whatever is asked of it, with words that raise too."""

    class Error(Exception):
        def __str__(self) -> str:
            raise ValueError("no words either")

    def __getattr__(self, name: str) -> object:
        raise self.Error

    def __float__(self) -> float:
        raise self.Error

    def __iter__(self) -> object:
        raise self.Error

    def __getitem__(self, name: object) -> object:
        raise self.Error


NO_NUMBERS = {
    "texts": ["a"] * 5,
    "ragged": [[1], [1, 2]],
    "objects": [object()] * 5,
    "nested deep": nested(5000),
    "itself": (endless := [1.0]),
    "a signalling NaN": [Decimal("sNaN")] * 5,
    "complex": np.full(5, 1 + 2j),
    "complex objects": np.array([np.complex128(1 + 2j)] * 5, dtype=object),
    "truth values": [True] * 5,
    "times": [FIRST] * 5,
    "NumPy's times": np.full(5, np.datetime64(FIRST, "s")),
    "NumPy's times as objects": np.array([np.datetime64(FIRST, "D")] * 5, dtype=object),
    "NumPy's spans": np.full(5, np.timedelta64(1, "s")),
    "times of pandas": pd.Series([FIRST] * 5),
    "times of pandas with a zone": pd.Series(pd.to_datetime([FIRST] * 5, utc=True)),
    "times of polars": pl.Series([FIRST] * 5),
    "records of NumPy's": np.zeros(5, dtype=[("a", "f4")]),
    "pandas' NA as an object": pd.Series([pd.NA] * 5, dtype=object),
    "one number": 1.5,
    "a generator": (value for value in [1.0] * 5),
    "a table": np.ones((5, 2)),
    "two columns of one name": pd.DataFrame(np.ones((5, 2)), columns=["close", "close"]),
}
endless.append(endless)


@pytest.mark.filterwarnings("error", "ignore::ResourceWarning")  # other tests leave files to collect
@pytest.mark.parametrize("values", NO_NUMBERS)
def test_a_column_that_is_not_numbers_is_refused_by_name(values):
    with pytest.raises(JobError) as refused:
        series_payload(mapping(close=NO_NUMBERS[values]), "x")
    assert (refused.value.code, refused.value.field) == (ErrorCode.BAD_TYPE, "close")


@pytest.mark.parametrize("value", [10**400, -(10**400)])
def test_an_integer_beyond_any_float_is_refused_by_its_row(value):
    with pytest.raises(JobError) as refused:
        job_series([mapping(), mapping(close=[1, 2, 3, value, 5])])
    assert (refused.value.code, refused.value.field, refused.value.details) == (
        ErrorCode.VALUE_TOO_LARGE,
        "series.1.close",
        {"row": 3},
    )


@pytest.mark.parametrize(
    "values",
    [
        [Decimal("1.5")] * 5,
        ["1.5"] * 5,
        np.array([1.5] * 5, dtype=object),
        pd.Series([1.5] * 5, dtype="Float64"),
        pl.Series([Decimal("1.5")] * 5),
    ],
    ids=["Decimal", "texts", "objects", "pandas' own", "polars' Decimal"],
)
def test_numbers_of_every_kind_are_read(values):
    assert decode_column(series_payload(mapping(close=values), "x")["close"]).tolist() == [1.5] * 5


UNREADABLE = {
    "raises": Unreadable(),
    "a column that raises": mapping(close=Unreadable()),
    "a number that raises": mapping(close=[Unreadable()] * 5),
    "times that raise": mapping(timestamps=Unreadable()),
    "a time that raises": mapping(timestamps=[Unreadable()] * 5),
    "a name that raises": {Unreadable(): [1.0] * 5},
    "times without a dimension": mapping(timestamps=np.array(FIRST, dtype="datetime64[s]")),
    "a lazy frame": pl.LazyFrame(mapping()),
    "None": None,
    "a number": 1,
    "a text": "close",
    "a set": {1.0},
    "several, and one raises": [mapping(), Unreadable()],
    "several, one of whose columns is ragged": [mapping(close=[[1.0], [1.0, 2.0]]), mapping()],
    "records, and one raises": [{"close": Unreadable()}],
    "nothing": [],
    "empty": {},
    "texts that are no Unicode": mapping(timestamps=["\ud800"] * 5),
    "times out of range": mapping(timestamps=[np.datetime64(10**15, "Y")] * 5),
}


LAZY = "ignore:Determining the column names of a LazyFrame"


@pytest.mark.filterwarnings(LAZY)
@pytest.mark.parametrize("source", UNREADABLE)
def test_whatever_candles_raise_is_one_coded_error(source):
    with pytest.raises(JobError) as refused, FakeForecastClient() as client:
        client.submit(UNREADABLE[source], pred_len=1)
    assert refused.value.code in (
        ErrorCode.BAD_TYPE,
        ErrorCode.BAD_VALUE,
        ErrorCode.MISSING_FIELD,
        ErrorCode.BAD_TIMESTAMP,
        ErrorCode.EMPTY_SERIES,
    )


@pytest.mark.filterwarnings(LAZY)
def test_what_cannot_be_read_says_why():
    with pytest.raises(JobError, match="LazyFrame") as refused:
        job_series(pl.LazyFrame(mapping()))
    assert refused.value.field == "series.0"
    assert isinstance(refused.value.__cause__, TypeError)


def test_want_of_memory_is_not_the_candles_fault():
    class Large(dict):
        def __getitem__(self, name: object) -> object:
            raise MemoryError

    with pytest.raises(MemoryError):
        series_payload(Large(mapping()), "x")


@pytest.mark.filterwarnings("error", "ignore::ResourceWarning")  # other tests leave files to collect
def test_what_float32_cannot_hold_becomes_infinite_quietly():
    payload = series_payload(mapping(close=[1e300] * 5), "x")
    assert np.isinf(decode_column(payload["close"])).all()


def test_optional_parts_are_sent_only_where_given():
    payload = series_payload(mapping(), "x", timezone="Asia/Shanghai")
    assert payload["timezone"] == "Asia/Shanghai"
    without = mapping()
    del without["volume"], without["amount"]
    assert series_payload(without, "x").keys() == {"id", "timestamps", "open", "high", "low", "close"}
