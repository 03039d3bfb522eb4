"""Candles from CSV files as people have them, and errors that name the column and the line."""

from pathlib import Path

import pytest

from kronos_model.errors import InputError
from worker.candle_file import read_candles

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
        ((HEADER.replace("high,", ""), ROW), "high", "no column high"),
        ((HEADER.replace("timestamps", "when"), ROW), "timestamps", "the file has when, open"),
        ((HEADER, ROW, ROW.replace("9.9", "n/a")), "low", "line 3, column low: there is 'n/a'"),
        ((HEADER, ROW, ROW.replace("10.1,", ",")), "close", "line 3, column close: there is nothing"),
        ((HEADER, ROW.replace("2024-06-18", "18/06/2024")), "timestamps", "line 2, column timestamps"),
        ((HEADER,), None, "no rows"),
        (("",), None, "cannot be read"),
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
