"""Frames as vendors' libraries make them are read as their files are."""

import sys
import warnings
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from kronos_client.backtesting.run import read_candles
from kronos_client.contract.columns import decode_column
from kronos_client.contract.errors import JobError
from kronos_client.core.long_request import data_payload
from kronos_client.core.series import job_series
from kronos_client.testing import FakeForecastClient
from kronos_model.bars import synthetic
from kronos_model.bars.columns import PRICE_COLUMNS
from kronos_model.bars.files.options import ReadOptions
from tests.kronos_model.bars.files.candle_files import EXPECTED, FOLDER

GERMAN: dict[str, Any] = {"encoding": "cp1252", "sep": ";", "decimal": ","}
FRAMES: dict[str, dict[str, Any]] = {
    "akshare.csv": {},
    "tushare.csv": {"dtype": {"trade_date": str}},
    "polygon_aggregates.csv": {},
    "polygon_flat_file.csv": {},
    "alpha_vantage.csv": {"index_col": 0},
    "nasdaq.csv": {},
    "investing_com.csv": {},
    "investing_com_german.csv": {},
    "fred_date.csv": {},
    "one_value.csv": {},
    "pandas_index.csv": {},
    "korean_broker.csv": {"encoding": "cp949", "thousands": ","},
    "alpha_vantage_adjusted.csv": {"index_col": 0},
    "german_broker.csv": GERMAN | {"thousands": ".", "dtype": {"Datum": str}},
    "vienna.csv": GERMAN | {"thousands": ".", "dtype": {"Datum": str}},
    "comdirect.csv": GERMAN | {"skiprows": 3},
    "ariva.csv": GERMAN | {"thousands": ".", "dtype": {"Datum": str}},
    "interactive_brokers.csv": {},
    "fred.csv": {"na_values": "."},
    "single_letters.csv": {},
    "metatrader_4.csv": {"header": None},
    "kraken.csv": {"header": None},
    "coinbase.csv": {"header": None},
    "bybit.csv": {"header": None},
    "ccxt.csv": {"header": None},
    "yfinance_several_tickers.csv": {"header": [0, 1], "index_col": 0},
    "yfinance_by_ticker.csv": {"header": [0, 1], "index_col": 0},
    "times_in_seconds.csv": {},
    "times_in_milliseconds.csv": {"index_col": 0},
    "times_in_nanoseconds.csv": {},
    "times_compact.csv": {},
    "times_with_slashes.csv": {},
    "times_with_points.csv": {},
    "binance.csv": {},
    "metatrader.csv": {"sep": "\t"},
    "newest_first.csv": {},
    "date_and_time.csv": {},
    "date_at_midnight_and_time.csv": {},
}
"""How pandas reads the samples as the frames that these vendors' libraries make."""


def frame_of(name: str) -> pd.DataFrame:
    frame = pd.read_csv(FOLDER / name, **FRAMES[name])
    return frame.set_index(pd.to_datetime(frame.index)) if "yfinance" in name else frame


@pytest.mark.filterwarnings("ignore:rows without a value", "ignore:bars with the volume -1")
@pytest.mark.parametrize("name", FRAMES)
def test_frames_of_vendors_are_read_as_their_files(name: str) -> None:
    expected = EXPECTED[name]
    found = job_series(frame_of(name))
    assert [each["id"] for each in found] == expected.get("instruments", ["0"])
    assert [text[:19] for text in found[0]["timestamps"]] == [text[:19] for text in expected["timestamps"]]
    assert found[0].keys() - {"id", "timestamps", "timezone"} == expected["columns"].keys()
    for column, values in expected["columns"].items():
        assert decode_column(found[0][column]).tolist() == np.float32(values).tolist()


@pytest.mark.filterwarnings("ignore:rows without a value", "ignore:bars with the volume -1")
def test_a_plot_shows_the_bars_of_vendors_frames() -> None:
    pytest.importorskip("matplotlib", reason="plots need Matplotlib")
    from matplotlib import pyplot

    pyplot.switch_backend("agg")
    long_enough = [name for name in FRAMES if len(EXPECTED[name]["timestamps"]) > 2]
    for name in {*long_enough} - {"yfinance_several_tickers.csv"}:
        result = FakeForecastClient().forecast(frame_of(name), pred_len=1, sample_count=1)
        prices = result.plot(frame_of(name))
        (line,) = [line for line in prices.lines if line.get_label() == "close, mean of paths"]
        assert line.get_ydata()[0] == pytest.approx(EXPECTED[name]["columns"]["close"][-1]), name
        pyplot.close("all")


def test_volumes_that_mean_none_give_a_warning() -> None:
    frame = pd.read_csv(FOLDER / "interactive_brokers_trades.csv")
    frame["date"] = pd.date_range("2024-06-18 09:35", periods=3, freq="5min", tz="US/Eastern")
    with pytest.warns(UserWarning, match="bars with the volume -1, by which Interactive Brokers means"):
        (found,) = job_series(frame)
    assert decode_column(found["volume"]).tolist() == [1200, 0, 1500]
    assert (found["timestamps"][0], found["timezone"]) == ("2024-06-18T09:35:00-04:00", "US/Eastern")


TIMES = pd.to_datetime(["2024-06-18", "2024-06-19", "2024-06-20"])


@pytest.mark.parametrize(
    "candles",
    [
        pd.Series([4.25, 4.5, 4.75], index=TIMES),
        pd.Series([4.25, 4.5, 4.75], index=TIMES).to_frame("DGS10"),
        pd.DataFrame({"ds": TIMES, "y": [4.25, 4.5, 4.75]}),
        pl.DataFrame({"date": ["2024-06-18", "2024-06-19", "2024-06-20"], "target": [4.25, 4.5, 4.75]}),
        {"timestamps": TIMES, "value": [4.25, 4.5, 4.75]},
        [
            {"date": day, "close": 1.0 + n, "open": 1.0, "high": 9.0, "low": 0.5}
            for n, day in enumerate(TIMES)
        ],
    ],
)
def test_one_value_a_bar_is_open_high_low_and_close(candles: Any) -> None:
    (found,) = job_series(candles)
    expected = [1.0, 2.0, 3.0] if isinstance(candles, list) else [4.25, 4.5, 4.75]
    assert decode_column(found["close"]).tolist() == expected
    assert (found["open"] == found["high"] == found["low"] == found["close"]) is not isinstance(candles, list)


def test_series_by_name_and_in_lists_are_several(recwarn: pytest.WarningsRecorder) -> None:
    rate = pd.Series([4.25, np.nan, 4.75], index=TIMES)
    assert [each["id"] for each in job_series({"DGS10": rate, "DGS2": rate})] == ["DGS10", "DGS2"]
    assert {len(each["timestamps"]) for each in job_series([rate, rate])} == {2}
    assert str(recwarn[0].message) == "the frame 'DGS10': rows without a value, left out: 1"
    several = {"US": frame_of("yfinance_by_ticker.csv"), "DE": frame_of("akshare.csv")}
    assert [each["id"] for each in data_payload(several)["instruments"]] == ["US AAPL", "US MSFT", "DE"]


@pytest.mark.parametrize("zone", [None, "America/New_York"])
def test_an_index_of_times_may_be_newest_first(zone: str | None) -> None:
    index = TIMES.tz_localize(zone).rename("Datum")
    bars = pd.DataFrame({name: [1.0, 2.0, 3.0] for name in ("Open", "High", "Low", "Close")}, index=index)
    for candles in (bars, bars["Close"], pl.DataFrame(bars.reset_index(names="date"))):
        (expected,), (found,) = job_series(candles), job_series(candles[::-1])
        assert pd.to_datetime(found["timestamps"]).equals(pd.to_datetime(expected["timestamps"]))
        assert (found["close"], found.get("timezone")) == (expected["close"], expected.get("timezone"))


@pytest.mark.parametrize("name", ["polygon_aggregates.csv", "ccxt.csv", "times_in_seconds.csv"])
def test_rows_as_vendors_libraries_answer_are_read_as_their_frames(name: str) -> None:
    frame = frame_of(name)
    records = frame.to_dict("records")
    rows = [[*each.values()] for each in records] if name == "ccxt.csv" else records
    assert job_series(rows) == job_series(frame)
    assert job_series({"A": rows, "B": rows}) == job_series({"A": frame, "B": frame})
    assert data_payload([rows, rows]) == data_payload([frame, frame])


def test_columns_with_numbers_as_times_are_read_as_their_frame() -> None:
    frame = frame_of("times_in_seconds.csv")
    columns = frame.to_dict("list")
    assert job_series(columns) == job_series(frame)
    assert job_series({"A": columns, "B": columns}) == job_series({"A": frame, "B": frame})


def test_what_is_ambiguous_in_a_frame_is_refused() -> None:
    frame = pd.read_csv(FOLDER / "two_vendors.csv")
    with pytest.raises(JobError, match="fit two forms, plain columns, with close in close and Investing"):
        job_series(frame)
    with pytest.raises(JobError, match=r"the frame has no header, .* do not prove the order"):
        job_series(pd.read_csv(FOLDER / "ccxt_order_unproved.csv", header=None))


def test_what_pandas_read_wrongly_is_refused_with_its_remedy() -> None:
    with pytest.raises(JobError, match=r"give header=None to pd\.read_csv"):
        job_series(pd.read_csv(FOLDER / "metatrader_4.csv"))
    columns = {"timestamps": ["2024-01-01"], **{name: ["9,82"] for name in PRICE_COLUMNS}}
    with pytest.raises(JobError, match=r"'open', row 0: '9,82' is not a number: .* give decimal=\",\" to"):
        job_series(pd.DataFrame(columns))


@pytest.mark.parametrize("name", ["german_broker.csv", "vienna.csv", "ariva.csv"])
def test_thousands_that_pandas_left_as_texts_are_refused(name: str) -> None:
    with pytest.raises(JobError, match=r"give the decimal sign to pd.read_csv, with thousands="):
        job_series(pd.read_csv(FOLDER / name, **GERMAN))


def test_a_backtest_reads_frames_of_vendors_and_series() -> None:
    read = read_candles({"A": frame_of("akshare.csv"), "B": pd.Series([4.25, 4.5, 4.75], index=TIMES)})
    assert [each.name for each in read.instruments] == ["A", "B"]
    assert read.instruments[1].bars[:, :4].tolist() == [[value] * 4 for value in (4.25, 4.5, 4.75)]
    traded = read_candles({"C": pd.read_csv(FOLDER / "interactive_brokers_trades.csv")})
    assert [text[:38] for text in traded.remarks] == ["the frame 'C': bars with the volume -1"]
    assert "Each bar has one value" in read.remarks[0]


@pytest.mark.parametrize("name", ["plain", "akshare", "binance", "newest_first", "one_value"])
def test_a_backtest_reads_whatever_a_forecast_takes(name: str) -> None:
    frame = pd.read_csv(FOLDER / f"{name}.csv")
    closes = job_series(frame)[0]["close"]
    polars_frame, columns = pl.DataFrame(frame), frame.to_dict("list")
    for candles in (frame, polars_frame, [frame], {"A": polars_frame}, columns, {"A": columns}):
        (found,) = read_candles(candles).instruments
        assert found.bars[:, 3].tolist() == decode_column(closes).tolist()
        assert found.name == ("A" if isinstance(candles, dict) and "A" in candles else "0")


def test_a_backtest_names_frames_and_not_where_they_are_written() -> None:
    frame = pd.read_csv(FOLDER / "interactive_brokers_trades.csv")
    read = read_candles({"A/1": frame}, ReadOptions(drop_bad_rows=True))
    assert "/tmp" not in "".join(read.remarks)
    assert any(text.startswith("the frame 'A/1'") for text in read.remarks)


def test_a_repeated_time_has_one_code_wherever_it_stands() -> None:
    given = pd.DataFrame(synthetic.candles(bars=30).as_dict())
    given = pd.concat([given, given.tail(1)])
    long = given.rename(columns={"timestamps": "ds"}).assign(unique_id="A")
    with FakeForecastClient() as client, client.feed("f", pred_len=3) as feed:
        for call in (
            lambda: client.forecast(given, pred_len=3),
            lambda: client.predict_df(long, pred_len=3),
            lambda: feed.append(long),
        ):
            with pytest.raises(JobError, match="TIMESTAMPS_NOT_ASCENDING"):
                call()


def test_a_column_of_something_else_is_not_taken_for_prices() -> None:
    with pytest.raises(JobError) as refused:
        FakeForecastClient().submit(pd.DataFrame({"volume": [1.0, 2.0, 3.0]}, index=TIMES), pred_len=1)
    assert refused.value.code == "MISSING_FIELD"


@pytest.mark.parametrize(("missing", "kept"), [("error", 2), ("ffill", 3)])
def test_missing_bars_of_a_series_are_treated_as_asked(missing: str, kept: int) -> None:
    series = pd.Series([4.25, float("nan"), 4.75], index=TIMES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (found,) = job_series(series, missing=missing)
    assert len(found["timestamps"]) == kept


@pytest.fixture
def no_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kronos_model.bars.files.lookback", None)


@pytest.mark.usefixtures("no_pyarrow")
def test_frames_with_our_names_need_no_pyarrow() -> None:
    bars = pd.DataFrame(synthetic.candles(bars=30).as_dict())
    (expected,) = job_series(bars)
    with pytest.warns(UserWarning, match="not in the order of their times: sorted"):
        assert job_series(bars[::-1]) == [expected]
    seconds = pd.to_datetime(bars["timestamps"], utc=True).to_numpy("datetime64[s]").astype(int)
    numbered = bars.drop(columns="timestamps").assign(time=seconds)
    assert job_series(numbered)[0]["close"] == expected["close"]
    assert job_series(numbered)[0]["timestamps"][0].endswith("Z")
    for bad, code in (
        (pd.concat([bars, bars.tail(1)]), "TIMESTAMPS_NOT_ASCENDING"),
        (bars.assign(ds=pd.to_datetime(bars["timestamps"]).where(bars.index < 29)), "BAD_TIMESTAMP"),
    ):
        given = bad.drop(columns="timestamps") if "ds" in bad else bad
        with FakeForecastClient() as client, pytest.raises(JobError, match=code):
            client.forecast(given, pred_len=3)


@pytest.mark.parametrize(("name", "encoding"), [("akshare.csv", "utf-8"), ("korean_broker.csv", "cp949")])
def test_vendors_prices_may_have_times_from_elsewhere(name: str, encoding: str) -> None:
    frame = pd.read_csv(FOLDER / name, encoding=encoding, thousands=",")
    (expected,) = job_series(frame)
    bare = frame.drop(columns=[title for title in frame if title in ("日期", "일자", "날짜", "时间", "시간")])
    times = pd.DatetimeIndex(expected["timestamps"])
    for given, own in (
        (bare.set_index(times), None),
        (bare.set_index(times.rename("date")), None),
        (bare, times),
    ):
        (found,) = job_series(given, timestamps=own)
        assert [found[column] for column in PRICE_COLUMNS] == [expected[column] for column in PRICE_COLUMNS]


def test_predict_df_reads_vendors_titles() -> None:
    frame = pd.DataFrame(synthetic.candles(bars=30).as_dict())[["timestamps", *PRICE_COLUMNS]]
    frame["timestamps"] = pd.date_range("2024-06-18", periods=30)
    frame.columns = pd.Index(["日期", "开盘", "最高", "最低", "收盘"])
    with FakeForecastClient() as client:
        found = client.predict_df(
            frame.assign(股票代码="A"), id_column="股票代码", timestamp_column="日期", pred_len=3
        )
    assert len(found) == 3


def test_decimal_commas_next_to_numbers_whose_point_separated_thousands_are_refused():
    price = [f"{10 + row / 10:.1f}".replace(".", ",") for row in range(30)]
    days = pd.date_range("2024-06-03", periods=30).strftime("%d.%m.%Y")
    frame = pd.DataFrame({"Datum": days, **dict.fromkeys(["Eröffnung", "Hoch", "Tief", "Schluss"], price)})
    job_series(frame.assign(Volumen=18402.0))
    with pytest.raises(JobError, match=r"such as 18.402.*to pd.read_csv, with thousands="):
        job_series(frame.assign(Volumen=18.402))


def test_times_of_which_some_have_offsets_are_not_sorted():
    candles = synthetic.candles(seed=1, bars=60).as_dict()
    times = [
        time.removesuffix("Z") + ("+08:00" if row >= 50 else "")
        for row, time in enumerate(candles["timestamps"])
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (series,) = job_series(pd.DataFrame(candles).assign(timestamps=times))
    assert series["timestamps"] == times
