import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from kronos_model.bars.columns import RATES, Instrument, check_candles, to_bars
from kronos_model.bars.files import faults
from kronos_model.bars.files import instruments as instruments_module
from kronos_model.bars.files.instruments import read_instruments
from kronos_model.bars.files.options import ReadOptions
from kronos_model.bars.files.report import DataReport
from kronos_model.bars.timestamps import parse_timestamps
from kronos_model.errors import CandleError, NoPrices, TrainingDataError
from kronos_model.finetuning.config_parts import DataConfig
from kronos_model.finetuning.data import read_files
from tests.kronos_model.bars.files.candle_files import EXPECTED, READABLE, file_of

Write = Callable[[pd.DataFrame, Path], None]


def write_csv(table: pd.DataFrame, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(path, index=False)


def write_parquet(table: pd.DataFrame, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table.to_parquet(path, index=False)


def candles(
    num_bars: int = 10, start: str = "2024-06-18 09:30", seed: int = 0, **columns: Any
) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    close = 100 * np.exp(np.cumsum(rng.normal(0, 0.01, num_bars)))
    open_ = close * (1 + rng.normal(0, 0.01, num_bars))
    times = pd.date_range(start, periods=num_bars, freq="5min")
    return pd.DataFrame(
        {
            "timestamps": times.strftime("%Y-%m-%d %H:%M:%S"),
            "open": open_,
            "high": np.maximum(open_, close) * 1.01,
            "low": np.minimum(open_, close) * 0.99,
            "close": close,
            "volume": rng.integers(1, 1000, num_bars).astype(float),
        }
        | columns
    )


def read(path: Path | tuple[Path, ...], **settings: Any) -> tuple[list[Instrument], DataReport]:
    paths = tuple(map(str, path)) if isinstance(path, tuple) else str(path)
    config = DataConfig(path=paths, **{"drop_bad_rows": True} | settings)
    return read_files(config.paths, config, "data.")


def refusal_of(path: Path | tuple[Path, ...], **settings: Any) -> TrainingDataError:
    with pytest.raises(TrainingDataError) as caught:
        read(path, **settings)
    return caught.value


def texts_of(times: np.ndarray) -> list[str]:
    return [str(time) for time in times]


@pytest.mark.parametrize("write", [write_csv, write_parquet])
def test_one_file_is_one_instrument(tmp_path: Path, write: Write) -> None:
    table = candles()
    path = tmp_path / f"BTC{'.csv' if write is write_csv else '.parquet'}"
    write(table, path)

    [instrument], report = read(path)

    assert instrument.name == "BTC"
    assert instrument.bars.dtype == np.float32
    np.testing.assert_array_equal(
        instrument.bars, to_bars(table.drop(columns="timestamps").to_dict("series"))
    )
    assert texts_of(instrument.wall[:2]) == ["2024-06-18T09:30:00", "2024-06-18T09:35:00"]
    np.testing.assert_array_equal(instrument.instants, instrument.wall)
    assert not instrument.is_aware
    assert report.as_dict()["instruments"] == [
        {
            "name": "BTC",
            "files": [str(path)],
            "num_bars": 10,
            "first": "2024-06-18T09:30:00",
            "last": "2024-06-18T10:15:00",
            "spacing_s": 300,
            "num_gaps": 0,
            "longest_break_s": 300,
            "num_sorted": 0,
            "num_filled": 0,
            "dropped": {},
        }
    ]


@pytest.mark.parametrize("name", READABLE)
def test_files_are_read_like_those_of_a_forecast(name: str) -> None:
    expected = EXPECTED[name]
    instruments, report = read(file_of(name), **expected.get("options", {}))

    instrument = instruments[0]
    np.testing.assert_array_equal(instrument.bars, to_bars(expected["columns"]))
    stamps = parse_timestamps(expected["timestamps"])
    assert texts_of(instrument.wall) == texts_of(stamps.wall.astype("datetime64[s]"))
    assert (instrument.is_aware, report.dropped) == (stamps.is_aware, expected.get("dropped", {}))


class TestTimesInSeveralColumns:
    @staticmethod
    def split(days: int = 3, **columns: Any) -> pd.DataFrame:
        """Five-minute bars of some days, with dates and times of day in two columns."""
        table = pd.concat([candles(5, start=f"2024-06-{18 + day} 09:30") for day in range(days)])
        times = pd.to_datetime(table.pop("timestamps"))
        return table.reset_index(drop=True).assign(
            Date=times.dt.strftime("%Y-%m-%d").to_numpy(),
            Time=times.dt.strftime("%H:%M").to_numpy(),
            **columns,
        )

    @pytest.mark.parametrize("kind", ["text", "date", "datetime"])
    def test_dates_and_times_of_parquet_are_joined(self, tmp_path: Path, kind: str) -> None:
        table = self.split()
        if kind != "text":
            dates = pd.to_datetime(table["Date"])
            table["Date"] = dates.dt.date if kind == "date" else dates
            table["Time"] = pd.to_datetime(table["Time"], format="%H:%M").dt.time
        write_parquet(table, tmp_path / "a.parquet")

        [instrument], report = read(tmp_path)

        assert (len(instrument), report.dropped) == (15, {})
        assert texts_of(instrument.wall[[1, 5]]) == ["2024-06-18T09:35:00", "2024-06-19T09:30:00"]

    def test_times_of_day_may_have_offsets(self, tmp_path: Path) -> None:
        table = self.split(1)
        write_csv(table.assign(Time=table["Time"] + "+08:00"), tmp_path / "a.csv")

        [instrument], _ = read(tmp_path)

        assert texts_of(instrument.instants[:1]) == ["2024-06-18T01:30:00"]

    @pytest.mark.parametrize("write", [write_csv, write_parquet])
    @pytest.mark.parametrize(
        ("columns", "named"),
        [
            ({"Date": "2024-06-18 09:30:00"}, "date and time"),
            ({"Date": pd.Timestamp("2024-06-18 09:30")}, "date and time"),
            ({"Time": "1718673300"}, "date and time"),
            ({"Time": ""}, "date and time"),
            ({"Time": 935}, "date and time"),
        ],
    )
    def test_several_possible_time_columns_are_refused(
        self, tmp_path: Path, write: Write, columns: dict[str, Any], named: str
    ) -> None:
        path = tmp_path / f"a{'.csv' if write is write_csv else '.parquet'}"
        write(self.split().assign(**columns), path)

        error = refusal_of(path)

        assert error.field == "data.columns.timestamps"
        assert f"{named}: rename the right one to timestamps" in error.message
        assert "or name the column in data.columns.timestamps" in error.message

    def test_a_mapped_time_column_wins(self, tmp_path: Path) -> None:
        write_csv(self.split(), tmp_path / "a.csv")

        [instrument], _ = read(tmp_path, columns={"timestamps": "date"})

        assert texts_of(instrument.wall) == [f"2024-06-{day}T00:00:00" for day in (18, 19, 20)]


class TestSkippedFiles:
    def test_unusable_files_of_a_folder_are_skipped(self, tmp_path: Path) -> None:
        write_csv(candles(3), tmp_path / "market/BTC.csv")
        write_csv(candles(0), tmp_path / "market/EMPTY.csv")
        write_csv(candles(3, timestamps=[1, 2, 3]), tmp_path / "market/ODD.csv")
        (tmp_path / "market/readme.csv").write_text("name,description\nBTC,a coin\n")
        (tmp_path / "market/broken.parquet").write_bytes(b"not Parquet")

        instruments, report = read(tmp_path / "market")

        assert [each.name for each in instruments] == ["BTC"]
        assert [each.name for each in report.instruments] == ["BTC"]
        assert report.dropped == {}
        reasons = {Path(file).name: reason for file, reason in report.skipped.items()}
        assert reasons.keys() == {"EMPTY.csv", "ODD.csv", "readme.csv", "broken.parquet"}
        assert reasons["EMPTY.csv"].startswith("has no usable row: it is empty")
        assert "3 unreadable time" in reasons["ODD.csv"]
        assert "no column with the times" in reasons["readme.csv"]
        assert "cannot be read as Parquet" in reasons["broken.parquet"]
        content = json.loads(json.dumps(report.as_dict()))
        assert (content["num_skipped"], content["skipped"]) == (4, report.skipped)
        assert "4 files skipped:\n" in report.summary()
        assert f"  {tmp_path / 'market/EMPTY.csv'}: has no usable row" in report.summary()

    def test_an_unusable_file_that_is_named_itself_is_refused(self, tmp_path: Path) -> None:
        write_csv(candles(3), tmp_path / "a.csv")
        write_csv(candles(0), tmp_path / "b.csv")

        for paths in ((tmp_path, tmp_path / "b.csv"), (tmp_path / "b.csv", tmp_path)):
            assert f"{tmp_path / 'b.csv'} has no usable row" in refusal_of(paths).message

    def test_rates_are_refused_as_rates(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text("observation_date,RATE\n2024-06-18,-0.5\n2024-06-19,-0.4\n")
        message = refusal_of((tmp_path / "a.csv",)).message
        assert message.endswith(f"of its rows, 2 price not above zero: {RATES}")

    def test_a_folder_without_a_usable_file_is_refused(self, tmp_path: Path) -> None:
        write_csv(candles(3), tmp_path / "good/a.csv")
        write_csv(candles(0), tmp_path / "bad/a.csv")
        (tmp_path / "bad/b.csv").write_text("name\nBTC\n")

        error = refusal_of((tmp_path / "good", tmp_path / "bad"))

        assert f"none of the 2 files in {tmp_path / 'bad'} can be used: " in error.message
        assert "a.csv has no usable row: it is empty" in error.message
        assert "b.csv has no column with the times" in error.message

    def test_a_web_page_in_place_of_a_file_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text('<!DOCTYPE html>\n<html lang="en">\nRate limit; 1,2\n</html>\n')

        assert "a.csv is a web page, not candles" in refusal_of(tmp_path / "a.csv").message

    def test_a_column_name_that_fits_no_file_is_refused(self, tmp_path: Path) -> None:
        for name in "abcde":
            write_csv(candles(3), tmp_path / f"{name}.csv")
        write_csv(candles(3).drop(columns="timestamps"), tmp_path / "0.csv")

        error = refusal_of(tmp_path, columns={"close": "Adj Close"})

        assert error.field == "data.columns.close"
        assert "'Adj Close' for close" in error.message
        assert len(error.message) < 1500

    def test_times_of_skipped_files_are_ignored(self, tmp_path: Path) -> None:
        """A skipped file does not decide whether times have offsets."""
        write_csv(candles(1, timestamps="2024-06-18T09:30Z", close=-1), tmp_path / "a.csv")
        write_csv(candles(3), tmp_path / "b.csv")

        instruments, report = read(tmp_path)

        assert [each.is_aware for each in instruments] == [False]
        assert len(report.skipped) == 1


def test_the_index_of_pandas_is_read_from_parquet(tmp_path: Path) -> None:
    table = candles(2)
    table.index = pd.to_datetime(table.pop("timestamps")).dt.tz_localize("Europe/Berlin").rename(None)
    table.to_parquet(tmp_path / "a.parquet")

    [instrument], report = read(tmp_path)

    assert instrument.is_aware
    assert texts_of(instrument.wall) == ["2024-06-18T09:30:00", "2024-06-18T09:35:00"]
    assert texts_of(instrument.instants) == ["2024-06-18T07:30:00", "2024-06-18T07:35:00"]
    assert report.instruments[0].first == "2024-06-18T09:30:00+02:00"


def test_float32_integers_decimals_and_categories_are_numbers_of_parquet(tmp_path: Path) -> None:
    table = candles(2, volume=[3, 4], symbol=pd.Categorical(["x", "x"])).astype({"close": "float32"})
    table["open"] = pd.Series([100, 101], dtype=pd.ArrowDtype(pa.decimal128(10, 2)))
    table["timestamps"] = table["timestamps"].astype("category")
    table["high"] = 200
    write_parquet(table, tmp_path / "a.parquet")

    [instrument], _ = read(tmp_path, id_column="symbol")

    assert instrument.bars[:, [0, 1, 4]].tolist() == [[100, 200, 3], [101, 200, 4]]


@pytest.mark.parametrize("text", ["", "nan", "inf", "-inf", "1,5", "0x10", "1_000", "--1", "1e", "."])
def test_values_that_are_not_finite_are_dropped(tmp_path: Path, text: str) -> None:
    write_csv(candles(3).astype(object).assign(open=["100.5", text, " +1.005E2 "]), tmp_path / "a.csv")

    [instrument], report = read(tmp_path)

    assert instrument.bars[:, 0].tolist() == [100.5, 100.5]
    assert report.dropped == {"not_a_number": 1}


def test_a_bar_that_a_forecast_would_refuse_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all combinations of odd values, exactly those that check_candles refuses are dropped."""
    odd = [-1.0, 0.0, 1e-60, 1.0, 2.0, 9e16, 1.1e17, np.inf, np.nan]
    rng = np.random.default_rng(0)
    rows = {name: rng.choice(odd, 2000, p=[0.03, 0.03, 0.03, 0.4, 0.4, 0.03, 0.03, 0.02, 0.03])
            for name in ("open", "high", "low", "close", "volume")}  # fmt: skip
    rows["volume"][np.isnan(rows["volume"])] = 0  # as a missing one is read
    table = candles(2000, **rows)

    def is_usable(row: int) -> bool:
        try:
            check_candles({name: values[row : row + 1] for name, values in rows.items()})
        except CandleError:
            return False
        return True

    for module in (instruments_module, faults):
        monkeypatch.setattr(module, "CHUNK_ROWS", 300)
    write_parquet(table, tmp_path / "a.parquet")
    [instrument], report = read(tmp_path)

    usable = [row for row in range(2000) if is_usable(row)]
    assert 0 < len(usable) < 2000
    assert texts_of(instrument.wall) == table["timestamps"][usable].str.replace(" ", "T").tolist()
    expected = to_bars(table.drop(columns="timestamps").iloc[usable].to_dict("series"))
    np.testing.assert_array_equal(instrument.bars, expected)
    assert sum(report.dropped.values()) == 2000 - len(usable)


def test_rows_are_sorted_and_the_first_of_equal_times_is_kept(tmp_path: Path) -> None:
    table = candles(4)
    again = table.iloc[[1]].assign(volume=7777.0)
    write_csv(pd.concat([table.iloc[[3, 0, 1, 2]], again]), tmp_path / "a.csv")

    [instrument], report = read(tmp_path)

    np.testing.assert_array_equal(instrument.bars[:, 4], table["volume"])
    assert report.instruments[0].num_sorted == 3
    assert report.dropped == {"duplicate_time": 1}


def test_one_file_may_hold_several_instruments(tmp_path: Path) -> None:
    first, second = candles(4, symbol="000001"), candles(3, seed=1, symbol=" B ")
    second.loc[1, "volume"] = -1
    nameless = candles(2, start="2025-01-01", symbol="")
    mixed = pd.concat([first, second, nameless]).sort_values("timestamps", kind="stable")
    write_csv(mixed, tmp_path / "a.csv")

    instruments, report = read(tmp_path, id_column="SYMBOL")

    assert [each.name for each in instruments] == ["000001", "B"]
    np.testing.assert_array_equal(instruments[0].bars[:, 4], first["volume"])
    np.testing.assert_array_equal(instruments[1].bars[:, 4], second["volume"].drop(index=1))
    assert [dict(each.dropped) for each in report.instruments] == [{}, {"negative_volume": 1}]
    assert report.dropped == {"negative_volume": 1, "no_instrument": 2}


def test_a_name_in_several_files_is_one_instrument(tmp_path: Path) -> None:
    table = candles(6, symbol="A")
    write_csv(table.iloc[3:], tmp_path / "1.csv")
    write_parquet(table.iloc[:4], tmp_path / "2.parquet")

    [instrument], report = read(tmp_path, id_column="symbol")

    np.testing.assert_array_equal(instrument.bars[:, 4], table["volume"])
    assert report.instruments[0].files == [str(tmp_path / "1.csv"), str(tmp_path / "2.parquet")]
    assert report.dropped == {"duplicate_time": 1}


def test_an_instrument_without_a_usable_bar_is_only_reported(tmp_path: Path) -> None:
    write_csv(pd.concat([candles(2, symbol="A"), candles(2, symbol="B", close=-1)]), tmp_path / "a.csv")

    instruments, report = read(tmp_path, id_column="symbol")

    assert [each.name for each in instruments] == ["A"]
    assert [(each.name, each.num_bars, each.first) for each in report.instruments][1] == ("B", 0, None)


def test_folders_are_read_with_subfolders_but_without_hidden_files(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", "more/c.CSV", ".hidden/d.csv", ".e.csv", "more/notes.txt"):
        write_csv(candles(2), tmp_path / name)

    instruments, _ = read((tmp_path / "b.csv", tmp_path))

    assert [each.name for each in instruments] == ["a", "b", "c"]


def test_files_of_the_same_name_are_named_with_their_folders(tmp_path: Path) -> None:
    for name in ("x/spot/BTC.csv", "y/spot/BTC.csv", "x/ETH.csv", "y/SOL.csv"):
        write_csv(candles(2), tmp_path / name)
    write_parquet(candles(2), tmp_path / "y/SOL.parquet")
    for name in ("x/ADA.csv", "x/ADA.pq", "y/ADA.csv", "y/ADA.pq"):
        (write_csv if name.endswith("csv") else write_parquet)(candles(2), tmp_path / name)

    instruments, _ = read(tmp_path)

    names = [each.name for each in instruments]
    assert names == [
        "ETH", "SOL.csv", "SOL.parquet", "x/ADA.csv", "x/ADA.pq", "x/spot/BTC",
        "y/ADA.csv", "y/ADA.pq", "y/spot/BTC",
    ]  # fmt: skip


def test_gaps_are_counted_within_a_day(tmp_path: Path) -> None:
    table = pd.concat([candles(20).drop(index=[5, 6, 12]), candles(20, start="2024-06-19 09:30")])
    write_csv(table, tmp_path / "a.csv")

    _, report = read(tmp_path)

    assert (report.instruments[0].spacing_s, report.num_gaps) == (300, 2)


def test_a_break_of_most_days_is_no_gap(tmp_path: Path) -> None:
    days = [candles(20, start=f"2024-06-{day} 09:30").drop(index=[8, 9]) for day in (18, 19, 20, 21)]
    days[2] = days[2].drop(index=[3])
    write_csv(pd.concat(days), tmp_path / "a.csv")

    assert read(tmp_path)[1].num_gaps == 1


def test_a_long_break_is_reported(tmp_path: Path) -> None:
    days = pd.bdate_range("2023-01-02", periods=260)
    for name, kept in {"WHOLE": days, "TORN": days[:50].append(days[200:])}.items():
        table = candles(len(kept), timestamps=kept.strftime("%Y-%m-%d"))
        write_csv(table, tmp_path / f"{name}.csv")
    weeks = pd.date_range("2023-01-02", periods=5, freq="7D").strftime("%Y-%m-%d")
    write_csv(candles(5, timestamps=weeks), tmp_path / "WEEKLY.csv")
    write_csv(candles(1), tmp_path / "ONE.csv")

    _, report = read(tmp_path)

    day_s = 86_400
    breaks = {each.name: each.longest_break_s for each in report.instruments}
    assert breaks == {"WHOLE": 3 * day_s, "TORN": 213 * day_s, "WEEKLY": 7 * day_s, "ONE": None}
    shown = [line for line in report.summary().splitlines() if "longest break" in line]
    assert len(shown) == 1
    assert shown[0].startswith("  TORN: 110 bars")
    assert shown[0].endswith(", longest break 213 d")


def test_the_fingerprint_depends_only_on_the_content(tmp_path: Path) -> None:
    table = candles(5)
    write_csv(table, tmp_path / "one/A.csv")
    write_csv(candles(3, seed=1), tmp_path / "one/B.csv")
    write_parquet(table, tmp_path / "two/deep/A.parquet")
    write_parquet(candles(3, seed=1), tmp_path / "two/B.parquet")
    same = [read(tmp_path / name)[1].fingerprint for name in ("one", "two")]
    assert same[0] == same[1]
    assert same[0].startswith("sha256:")

    others = {
        "price": table.assign(close=table["close"] * 1.0001),
        "time": table.assign(timestamps=table["timestamps"].str.replace(":45:", ":46:")),
        "offset": table.assign(timestamps=table["timestamps"] + "Z"),
        "other offset": table.assign(timestamps=table["timestamps"] + "+01:00"),
        "number": table.iloc[:-1],
    }
    for name, other in others.items():
        write_csv(other, tmp_path / name / "A.csv")
    write_csv(table, tmp_path / "name" / "C.csv")
    fingerprints = {read(tmp_path / name)[1].fingerprint for name in (*others, "name")}
    fingerprints.add(read(tmp_path / "one/A.csv")[1].fingerprint)
    assert len(fingerprints) == len(others) + 2


def test_the_report_of_a_large_market_is_shortened(tmp_path: Path) -> None:
    for number in range(30):
        later = candles(5, start="2024-06-26 09:30")
        write_csv(pd.concat([candles(5).drop(index=2), later]), tmp_path / f"{number:02}.csv")
        write_csv(candles(0), tmp_path / f"empty-{number:02}.csv")

    _, report = read(tmp_path)

    content = json.loads(json.dumps(report.short()))
    assert (content["num_instruments"], content["num_bars"], content["num_skipped"]) == (30, 270, 30)
    assert [each["name"] for each in content["instruments"]] == [f"{number:02}" for number in range(20)]
    assert all("files" not in each for each in content["instruments"])
    assert len(content["skipped"]) == 20
    whole = report.as_dict()
    assert content.keys() == whole.keys()
    assert (len(whole["instruments"]), len(whole["skipped"])) == (30, 30)
    lines = report.summary().splitlines()
    assert (lines[0], lines[-1]) == ("270 bars of 30 instruments", "  and 25 more")
    assert "  and 25 more, longest break 8 d" in lines
    assert report.remarks[0] == "30 gaps within days: bars around them are read as neighbours"


def test_a_bad_row_is_refused_with_its_line_unless_it_is_dropped(tmp_path: Path) -> None:
    write_csv(candles(3).assign(open=["soon", "1", "x"]), tmp_path / "a.csv")

    error = refusal_of(tmp_path, drop_bad_rows=False)

    assert error.field == "data.drop_bad_rows"
    assert "a.csv, line 2, column open: there is 'soon' where a number is needed" in error.message
    assert error.message.endswith("; data.drop_bad_rows leaves such rows out")
    _, report = read(tmp_path)
    assert [text.partition(", ")[2][:6] for text in report.bad_rows] == ["line 2", "line 4"]
    assert report.bad_rows[1] in report.summary()


def test_candles_that_no_market_prints_are_named(tmp_path: Path) -> None:
    write_csv(candles(4).assign(low=[1, 999, 1, 999], high=1000), tmp_path / "a.csv")

    _, report = read(tmp_path)

    assert report.dropped == {}
    [text] = report.as_dict()["warnings"]
    assert "a.csv, line 3, column open: '" in text
    assert text.endswith("is below the low of the same bar; 2 of its bars have such prices")
    assert read(tmp_path, reject_impossible=True)[1].dropped == {"outside_low_to_high": 2}


class TestRefusals:
    def test_a_path_without_candles(self, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        for path in (tmp_path / "missing.csv", tmp_path / "empty"):
            error = refusal_of(path)
            assert error.field == "data.path"
            assert str(path) in error.message

    @pytest.mark.parametrize(
        ("name", "content"),
        [("a.parquet", b"not Parquet"), ("a.csv", b"\xff\xfeopen,close\n"), ("a.csv", b""), ("a.pq", b"")],
    )
    def test_a_file_with_the_wrong_suffix(self, tmp_path: Path, name: str, content: bytes) -> None:
        (tmp_path / name).write_bytes(content)

        error = refusal_of(tmp_path / name)

        assert error.code == "TRAINING_DATA_INVALID"
        assert str(tmp_path / name) in error.message
        assert len(error.message) < 600

    @pytest.mark.parametrize("write", [write_csv, write_parquet])
    @pytest.mark.parametrize(
        ("settings", "field"),
        [
            ({}, "data.columns.close"),
            ({"columns": {"close": "last"}}, "data.columns.close"),
            ({"columns": {"close": "open", "amount": "turnover"}}, "data.columns.amount"),
            ({"columns": {"close": "open", "timestamps": "when"}}, "data.columns.timestamps"),
            ({"columns": {"close": "open"}, "id_column": "symbol"}, "data.id_column"),
        ],
    )
    def test_a_missing_column(
        self, tmp_path: Path, write: Write, settings: dict[str, Any], field: str
    ) -> None:
        path = tmp_path / f"a{'.csv' if write is write_csv else '.parquet'}"
        write(candles(3).drop(columns="close"), path)

        error = refusal_of(path, **settings)

        assert error.field == field
        assert str(path) in error.message
        assert "timestamps, open, high, low, volume" in error.message

    def test_a_file_without_a_usable_row_says_why(self, tmp_path: Path) -> None:
        write_csv(candles(3, timestamps=[1, 2, 3]), tmp_path / "odd.csv")

        error = refusal_of(tmp_path)

        assert f"{tmp_path / 'odd.csv'} has no usable row" in error.message
        assert "3 unreadable time" in error.message
        assert error.details == {"dropped": {"unreadable_time": 3}}

    def test_times_with_and_without_offsets(self, tmp_path: Path) -> None:
        aware = candles(3, timestamps=["2024-06-18T09:30Z", "2024-06-18T09:31Z", "2024-06-18T09:32Z"])
        write_csv(candles(3), tmp_path / "a/1.csv")
        write_csv(aware, tmp_path / "a/2.csv")
        write_csv(pd.concat([aware, candles(3)]), tmp_path / "b/1.csv")

        between, within = refusal_of(tmp_path / "a"), refusal_of(tmp_path / "b")

        assert (between.field, within.field) == ("data.path", "data.columns.timestamps")
        assert str(tmp_path / "a/2.csv") in between.message
        assert str(tmp_path / "b/1.csv") in within.message


FILLED = "Without prices or not there, with the close before: 2 bars"


@pytest.mark.parametrize(
    ("missing", "closes", "volumes", "remark"),
    [
        ("ffill", [2, 2, 3, 3, 4], [5, 0, 5, 0, 5], FILLED),
        ("drop", [2, 3, 4], [5, 5, 5], "Rows dropped: 2 without prices"),
    ],
)
def test_rows_without_prices_are_filled_or_left_out_and_counted(tmp_path, missing, closes, volumes, remark):
    rows = ["00,,,,,", "01,2,2,2,2,5", "02,,,,,", "03,3,3,3,3,5", "05,4,4,4,4,5"]
    day = "".join(f"2024-06-1{day}T09:{row}\n" for day in (8, 9) for row in ("04,9,9,9,9,1",))
    (tmp_path / "a.csv").write_text(
        "timestamps,open,high,low,close,volume\n" + "".join(f"2024-06-17T09:{row}\n" for row in rows) + day
    )
    (instrument,), report = read_instruments([str(tmp_path)], ReadOptions(missing=missing))
    assert (instrument.bars[:-2, 3].tolist(), instrument.bars[:-2, 4].tolist()) == (closes, volumes)
    assert remark in report.remarks
    with pytest.raises(NoPrices, match="there is nothing where a number is needed"):
        read_instruments([str(tmp_path / "a.csv")], ReadOptions())
