"""The last bars of a file, and errors that name the column and the line."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from kronos_model.bars.files.lookback import CandleFile
from kronos_model.bars.files.options import NO_OPTIONS, ReadOptions
from kronos_model.errors import CandleFileError, InputError
from tests.kronos_model.bars.files.candle_files import EXPECTED, FOLDER, file_of, options_of

ROW = "2024-06-18 09:35:00,10.0,10.2,9.9,10.1,100,1010"
HEADER = "timestamps,open,high,low,close,volume,amount"


def write(folder: Path, *lines: str) -> Path:
    path = folder / "candles.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def read_candles(path: Path, max_bars: int, options: ReadOptions = NO_OPTIONS) -> pd.DataFrame:
    return CandleFile(path, options).last(max_bars).candles


def outcome_of(path: Path, options: ReadOptions = NO_OPTIONS) -> dict[str, Any]:
    try:
        file = CandleFile(path, options)
        found = file.last(99)
    except CandleFileError as error:
        return {"error": error.message.replace(str(path), path.name)}
    times = found.candles.pop("timestamps").tolist()
    columns = {str(name): found.candles[name].tolist() for name in found.candles}
    outcome: dict[str, Any] = {"timestamps": times, "columns": columns}
    outcome |= {"instruments": list(file.instruments)} if file.instruments != ("",) else {}
    return outcome | ({"dropped": found.dropped} if found.dropped else {})


def test_every_file_has_an_expected_outcome() -> None:
    assert {file_of(name) for name in EXPECTED} == set(FOLDER.glob("*.csv*"))


@pytest.mark.parametrize("name", EXPECTED)
def test_each_file_gives_its_expected_outcome(name: str) -> None:
    expected = {key: value for key, value in EXPECTED[name].items() if key not in ("file", "options")}
    assert outcome_of(file_of(name), options_of(name)) == expected


def test_the_last_bars_keep_their_times_as_written(tmp_path: Path) -> None:
    rows = [ROW.replace("09:35", f"09:{minute}") for minute in (35, 40, 45)]
    candles = read_candles(write(tmp_path, HEADER, *rows), max_bars=2)
    assert candles["timestamps"].tolist() == ["2024-06-18 09:40:00", "2024-06-18 09:45:00"]
    assert list(candles.columns) == HEADER.split(",")
    assert candles["close"].tolist() == [10.1, 10.1]
    assert candles.index.tolist() == [0, 1]


@pytest.mark.parametrize("cell", ["", "null", "NaN", "n/a", "None", "-"])
def test_a_bar_whose_cells_say_that_there_is_none_is_missing(tmp_path: Path, cell: str) -> None:
    rows = [ROW.replace("09:35", f"09:{minute}") for minute in (35, 40, 45)]
    rows[1] = rows[1].partition(",")[0] + "".join(f",{cell}" for _ in rows[1].split(",")[1:])
    found = CandleFile(write(tmp_path, HEADER, *rows), ReadOptions(missing="drop")).last(9)
    candles, _ = found.settled("drop")
    assert candles["timestamps"].tolist() == ["2024-06-18 09:35:00", "2024-06-18 09:45:00"]


def test_the_line_by_which_excel_knows_the_separator_is_left_out(tmp_path: Path) -> None:
    lines = [line.replace(",", ";") for line in (HEADER, ROW, ROW.replace("09:35", "09:40"))]
    assert len(read_candles(write(tmp_path, "sep=;", *lines), max_bars=9)) == 2


def test_only_the_last_bars_must_be_usable(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER, f"1,{ROW}", "soon", ROW, ROW.replace("09:35", "09:40"))
    assert len(read_candles(path, max_bars=2)) == 2


@pytest.mark.parametrize("name", ["timestamps", "timestamp", "Date", "DATETIME", " time "])
def test_columns_are_found_in_any_order_and_case(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, f"Close,Ticker,High,LOW,Open,{name}", "10.1,AAPL,10.2,9.9,10.0,2024-06-18")
    candles = read_candles(path, max_bars=400)
    assert list(candles.columns) == ["timestamps", "open", "high", "low", "close"]
    assert candles.iloc[0].tolist() == ["2024-06-18", 10.0, 10.2, 9.9, 10.1]


@pytest.mark.parametrize(
    ("lines", "field", "details"),
    [
        ((HEADER.replace("high,", ""), ROW.replace("10.2,", "")), "high", {}),
        ((HEADER.replace("timestamps", "when"), ROW), "timestamps", {}),
        ((f"{HEADER},Close", f"{ROW},50"), "close", {}),
        ((HEADER.replace("low", "LOW"), ROW, ROW.replace("9.9", "n/a")), "LOW", {"line": 3}),
        ((HEADER, ROW.replace("2024-06-18", "yesterday")), "timestamps", {"line": 2}),
        ((HEADER, ROW.replace("00,", "00Z,", 1), ROW), "timestamps", {"line": 3}),
        (("", HEADER, ROW.replace("9.9", '"n/\na"'), ROW), "low", {"line": 3}),
        ((HEADER, ROW, f"1,{ROW}"), None, {"line": 3}),
        ((HEADER, ROW, '"' + ROW), None, {"line": 3}),
        ((HEADER,), None, {}),
    ],
)
def test_errors_name_the_column_and_the_line(
    tmp_path: Path, lines: tuple[str, ...], field: str | None, details: dict[str, int]
) -> None:
    with pytest.raises(InputError) as defect:
        read_candles(write(tmp_path, *lines), max_bars=400)
    assert (defect.value.code, defect.value.field, defect.value.details) == ("INVALID_INPUT", field, details)


def test_a_pipe_is_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(pipe.write_bytes, (FOLDER / "plain.csv").read_bytes())
        assert outcome_of(pipe) == EXPECTED["plain.csv"]


def test_a_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no-such\.csv cannot be read as CSV: No such file"):
        read_candles(tmp_path / "no-such.csv", max_bars=400)


@pytest.mark.parametrize("name", ["a.csv.gz", "a.tar"])
@pytest.mark.parametrize("content", [b"no archive", b"PK\x03\x04\xff", b"\x1f\x8b\x08\x00\xff", b"\x00" * 99])
def test_archives_are_input_errors(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError):
        read_candles(tmp_path / name, max_bars=400)


def test_messages_are_short_and_safe_for_terminals(tmp_path: Path) -> None:
    for lines in (
        (f"\x1b[2J{'x' * 9000},b", "1,2"),
        (f"\x1b[2J{'x' * 9000};b", "1"),
        (HEADER, ROW.replace("9.9", f"\x1b[2J{'x' * 9000}")),
    ):
        with pytest.raises(InputError) as defect:
            read_candles(write(tmp_path, *lines), max_bars=400)
        assert "�[2Jxxx" in str(defect.value)
        assert "\x1b" not in str(defect.value)
        assert len(str(defect.value)) < 1000


def test_any_error_of_a_reader_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise NotImplementedError("a new\nkind of column")

    monkeypatch.setattr("kronos_model.bars.files.table.read_parquet", fail)
    with pytest.raises(InputError, match=r"a\.pq cannot be read as Parquet: a new kind of column"):
        read_candles(tmp_path / "a.pq", max_bars=400)


class TestParquet:
    @staticmethod
    def write(folder: Path, **changes: Any) -> Path:
        columns = {
            "Timestamp": pd.to_datetime(["2024-06-18 09:35", "2024-06-18 09:40", "2024-06-18 09:45"]),
            **{name: [10.0, 10.1, 10.2] for name in ("open", "high", "low", "close", "Volume")},
            "venue": ["X", "Y", "Z"],
        }
        path = folder / "candles.PARQUET"
        pd.DataFrame(columns | changes).to_parquet(path)
        return path

    def test_it_is_read_like_csv(self, tmp_path: Path) -> None:
        candles = read_candles(self.write(tmp_path), max_bars=2)
        assert candles["timestamps"].tolist() == ["2024-06-18T09:40:00", "2024-06-18T09:45:00"]
        assert list(candles.columns) == ["timestamps", "open", "high", "low", "close", "volume"]
        assert candles["close"].tolist() == [10.1, 10.2]
        assert candles.index.tolist() == [0, 1]

    def test_times_may_be_pandas_index_and_have_a_zone(self, tmp_path: Path) -> None:
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
            ({"close": [True, True, True]}, "close", "the column for close holds bool, not numbers"),
            ({"close": pd.Timestamp("2024-01-01")}, "close", "the column for close holds timestamp"),
            ({"Timestamp": [1, 2, 3]}, "Timestamp", "row 1, column Timestamp: there is '2' where a time"),
            ({"Timestamp": [None, None, None]}, "Timestamp", "row 1, column Timestamp: there is nothing"),
        ],
    )
    def test_defects_are_named(self, tmp_path: Path, changes: dict[str, Any], field: str, part: str) -> None:
        with pytest.raises(InputError) as defect:
            read_candles(self.write(tmp_path, **changes), max_bars=2)
        assert part in str(defect.value)
        assert defect.value.field == field

    def test_a_file_without_candles_and_a_damaged_one_have_different_errors(self, tmp_path: Path) -> None:
        pd.DataFrame({"a": [1], "b": [2]}).to_parquet(tmp_path / "other.parquet")
        (tmp_path / "broken.parquet").write_text("no Parquet")
        with pytest.raises(InputError, match="it has a, b"):
            read_candles(tmp_path / "other.parquet", max_bars=2)
        with pytest.raises(InputError, match="cannot be read as Parquet") as defect:
            read_candles(tmp_path / "broken.parquet", max_bars=2)
        assert "\n" not in str(defect.value)
