"""Candles from files as people have them, and errors that name the column and the line."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from kronos_cli.files.candle_file import read_candles
from kronos_model.errors import InputError

ROW = "2024-06-18 09:35:00,10.0,10.2,9.9,10.1,100,1010"
HEADER = "timestamps,open,high,low,close,volume,amount"


def write(folder: Path, *lines: str) -> Path:
    path = folder / "candles.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_last_bars_are_taken_with_times_as_written(tmp_path: Path) -> None:
    rows = [ROW.replace("09:35", f"09:{minute}") for minute in (35, 40, 45)]
    candles = read_candles(write(tmp_path, HEADER, *rows), max_bars=2)
    assert candles["timestamps"].tolist() == ["2024-06-18 09:40:00", "2024-06-18 09:45:00"]
    assert list(candles.columns) == HEADER.split(",")
    assert candles["close"].tolist() == [10.1, 10.1]
    assert candles.index.tolist() == [0, 1]


def test_dates_and_times_in_columns_of_their_own_are_joined(tmp_path: Path) -> None:
    header, row = HEADER.replace("timestamps", "Date,Time"), ROW.replace(" 09", ",09")
    assert read_candles(write(tmp_path, header, row), max_bars=2)["timestamps"].tolist() == [
        "2024-06-18 09:35:00"
    ]


@pytest.mark.parametrize("name", ["timestamp", "Date", "DATETIME", " time "])
def test_columns_are_found_in_any_order_and_case(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, f"Close,Ticker,High,LOW,Open,{name}", "10.1,AAPL,10.2,9.9,10.0,2024-06-18")
    candles = read_candles(path, max_bars=400)
    assert list(candles.columns) == ["timestamps", "open", "high", "low", "close"]
    assert candles.iloc[0].tolist() == ["2024-06-18", 10.0, 10.2, 9.9, 10.1]


@pytest.mark.parametrize(
    ("lines", "field", "part"),
    [
        ((HEADER.replace("high,", ""), ROW.replace("10.2,", "")), "high", "no column high"),
        ((HEADER.replace("timestamps", "when"), ROW), "timestamps", "the file has when, open"),
        ((HEADER, ROW, ROW.replace("9.9", "n/a")), "low", "line 3, column low: there is 'n/a'"),
        ((HEADER, ROW, ROW.replace("10.1,", ",")), "close", "line 3, column close: there is nothing"),
        ((HEADER, ROW.replace("2024-06-18", "18/06/2024")), "timestamps", "line 2, column timestamps"),
        ((f"{HEADER},Close", f"{ROW},50"), "close", "the columns close and Close: keep one"),
        ((HEADER,), None, "no rows"),
        (("",), None, "cannot be read"),
        ((HEADER, "", ROW, "  ", ROW.replace("9.9", "n/a")), "low", "line 5, column low: there is 'n/a'"),
        (("", HEADER, ROW.replace("9.9", '"n/\na"'), ROW), "low", "line 3, column low"),
        ((HEADER, ROW, f"1,{ROW}"), None, "line 3: there are 8 cells where the header has 7"),
        ((HEADER, ROW, ROW.removesuffix(",1010")), "amount", "line 3, column amount: there is nothing"),
        ((HEADER, ROW, '"' + ROW), None, "cannot be read as CSV"),
    ],
)
def test_defects_are_named(tmp_path: Path, lines: tuple[str, ...], field: str | None, part: str) -> None:
    with pytest.raises(InputError) as defect:
        read_candles(write(tmp_path, *lines), max_bars=400)
    assert part in str(defect.value)
    assert defect.value.field == field


def test_a_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no-such\.csv cannot be read"):
        read_candles(tmp_path / "no-such.csv", max_bars=400)


def test_rows_may_end_in_a_comma(tmp_path: Path) -> None:
    candles = read_candles(write(tmp_path, HEADER, f"{ROW},", f"{ROW}, ,"), max_bars=2)
    assert candles["timestamps"].tolist() == ["2024-06-18 09:35:00"] * 2
    assert candles["amount"].tolist() == [1010.0] * 2


def test_an_index_without_name_and_a_second_column_of_one_name_are_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path, f"\ufeff,{HEADER},close", f"0,{ROW},99")
    assert read_candles(path, max_bars=2)["close"].tolist() == [10.1]


@pytest.mark.parametrize("name", ["a.csv.zip", "a.csv.gz", "a.csv.xz", "a.csv.zst", "a.tar"])
@pytest.mark.parametrize("content", [b"no archive", b"PK\x03\x04\xff", b"\x1f\x8b\x08\x00\xff", b"\x00" * 99])
def test_archives_whole_or_damaged_are_input_errors(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError):
        read_candles(tmp_path / name, max_bars=400)


def test_what_a_file_has_steers_no_terminal_and_fills_none(tmp_path: Path) -> None:
    for lines in ((f"\x1b[2J{'x' * 9000},b", "1,2"), (HEADER, ROW.replace("9.9", f"\x1b[2J{'x' * 9000}"))):
        with pytest.raises(InputError) as defect:
            read_candles(write(tmp_path, *lines), max_bars=400)
        assert "�[2Jxxx" in str(defect.value)
        assert "\x1b" not in str(defect.value)
        assert len(str(defect.value)) < 1000


def test_whatever_reading_raises_is_that_files_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise NotImplementedError("a new\nkind of column")

    monkeypatch.setattr("kronos_cli.files.candle_file._read_parquet", fail)
    with pytest.raises(InputError, match=r"a\.pq cannot be read: NotImplementedError: a new kind of column"):
        read_candles(tmp_path / "a.pq", max_bars=400)


def test_parquet_with_times_of_day_apart_is_an_input_error(tmp_path: Path) -> None:
    day = pd.to_datetime(["2024-06-18"]).date
    prices = {name: [1.0] for name in ("open", "high", "low", "close")}
    pd.DataFrame({"date": day, "time": [935], **prices}).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(InputError, match="cannot be read"):
        read_candles(tmp_path / "a.parquet", max_bars=400)


def write_parquet(folder: Path, **changes: Any) -> Path:
    columns = {
        "Timestamp": pd.to_datetime(["2024-06-18 09:35", "2024-06-18 09:40", "2024-06-18 09:45"]),
        **{name: [10.0, 10.1, 10.2] for name in ("open", "high", "low", "close", "Volume")},
        "venue": ["X", "Y", "Z"],
    }
    path = folder / "candles.PARQUET"
    pd.DataFrame(columns | changes).to_parquet(path)
    return path


def test_parquet_is_read_like_csv(tmp_path: Path) -> None:
    candles = read_candles(write_parquet(tmp_path), max_bars=2)
    assert candles["timestamps"].tolist() == ["2024-06-18T09:40:00", "2024-06-18T09:45:00"]
    assert list(candles.columns) == ["timestamps", "open", "high", "low", "close", "volume"]
    assert candles["close"].tolist() == [10.1, 10.2]
    assert candles.index.tolist() == [0, 1]


def test_times_may_be_pandas_index_and_have_a_zone(tmp_path: Path) -> None:
    times = pd.to_datetime(["2024-06-18 09:35", "2024-06-18 09:40"]).tz_localize("America/New_York")
    frame = pd.DataFrame({name: [1.0, 2.0] for name in ("open", "high", "low", "close")}, index=times)
    frame.to_parquet(tmp_path / "a.parquet")
    frame.rename_axis("date").to_parquet(tmp_path / "b.pq")
    wanted = ["2024-06-18T09:35:00-04:00", "2024-06-18T09:40:00-04:00"]
    assert read_candles(tmp_path / "a.parquet", max_bars=9)["timestamps"].tolist() == wanted
    assert read_candles(tmp_path / "b.pq", max_bars=9)["timestamps"].tolist() == wanted


@pytest.mark.parametrize(
    ("changes", "field", "part"),
    [
        ({"low": [1.0, float("nan"), 1.0]}, "low", "row 1, column low: there is nothing"),
        ({"close": ["1", "2", "n/a"]}, "close", "row 2, column close: there is 'n/a'"),
        ({"Timestamp": [1, 2, 3]}, "Timestamp", "row 1, column Timestamp: there is '2' where a time"),
        ({"Timestamp": [None, None, None]}, "Timestamp", "row 1, column Timestamp: there is nothing"),
    ],
)
def test_defects_in_parquet_are_named(tmp_path: Path, changes: dict[str, Any], field: str, part: str) -> None:
    with pytest.raises(InputError) as defect:
        read_candles(write_parquet(tmp_path, **changes), max_bars=2)
    assert part in str(defect.value)
    assert defect.value.field == field


def test_parquet_without_candles_and_damaged_parquet_are_told_apart(tmp_path: Path) -> None:
    pd.DataFrame({"a": [1], "b": [2]}).to_parquet(tmp_path / "other.parquet")
    (tmp_path / "broken.parquet").write_text("no Parquet")
    with pytest.raises(InputError, match="the file has a, b"):
        read_candles(tmp_path / "other.parquet", max_bars=2)
    with pytest.raises(InputError, match="cannot be read as Parquet") as defect:
        read_candles(tmp_path / "broken.parquet", max_bars=2)
    assert "\n" not in str(defect.value)
