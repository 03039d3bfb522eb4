"""The formats of a forecast, the output of earlier runs, and when it is used again."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from kronos_cli.files.inputs import Source
from kronos_cli.files.output import (
    JOURNAL,
    KINDS,
    ForecastFolder,
    ForecastTable,
    Kind,
    OutputExists,
    columns_of,
    forecast_record,
    write_record,
    write_table,
)
from kronos_client.testing import FakeForecastClient
from kronos_model.bars.synthetic import candles
from kronos_model.checkpoints.names import FOR_TRYING
from kronos_model.errors import DiskFull, InputError
from tests.worker.inference.forecasts import result

NAMES = ["open", "high", "low", "close", "volume", "amount"]
QUANTILES = [f"{name}_q{level}" for level in (0.1, 0.9) for name in NAMES]
COLUMNS = ["series", "timestamp", *NAMES, *QUANTILES, "caution"]


def record(name: str = "a", close: float = 10.0) -> dict[str, Any]:
    return forecast_record(name, Source(Path("in") / f"{name}.csv"), "job-1", result(close))


def read(path: Path, kind: Kind) -> pd.DataFrame:
    if kind == "json":
        loaded = json.loads(path.read_text())
        records = loaded if isinstance(loaded, list) else [loaded]
        return pd.concat([pd.DataFrame(columns_of(one)) for one in records], ignore_index=True)
    return pd.read_csv(path) if kind == "csv" else pd.read_parquet(path)


@pytest.mark.parametrize("kind", KINDS)
def test_every_format_has_the_mean_and_the_quantiles_of_each_bar(tmp_path: Path, kind: Kind) -> None:
    path = tmp_path / "folder" / f"a.{kind}"
    write_record(path, kind, record())
    table = read(path, kind)
    assert list(table.columns) == COLUMNS
    assert table["series"].tolist() == ["a", "a"]
    assert table["timestamp"].tolist() == ["2024-06-18 09:50:00", "2024-06-18 09:55:00"]
    assert table["close_q0.9"].tolist() == [10.0, 11.0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_holds_the_series_one_after_the_other(tmp_path: Path, kind: Kind) -> None:
    path = tmp_path / f"all.{kind}"
    write_table(path, kind, [record("a"), record("b", 20.5)])
    table = read(path, kind)
    assert table["series"].tolist() == ["a", "a", "b", "b"]
    assert table["open"].tolist() == [10.0, 11.0, 20.5, 21.5]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_table_says_which_forecasts_are_only_for_trying(tmp_path: Path, kind: Kind) -> None:
    caution = f"kronos-tiny was trained on synthetic candles: {FOR_TRYING}."
    records = [record("a"), record("b") | {"warnings": ["Another.", caution]}]
    write_table(tmp_path / f"all.{kind}", kind, records)
    assert read(tmp_path / f"all.{kind}", kind)["caution"].fillna("").tolist() == ["", "", caution, caution]


def test_json_has_the_origin_of_a_forecast(tmp_path: Path) -> None:
    write_record(tmp_path / "a.json", "json", record())
    kept = json.loads((tmp_path / "a.json").read_text())
    assert list(kept) == [
        "series", "file", "instrument", "job_id", "model", "device", "device_warning", "engine", "warnings",
        "seed", "timestamps", "timezone", "mean", "quantiles", "events", "statistics",
        "manifest",
    ]  # fmt: skip
    assert (kept["seed"], kept["job_id"], kept["file"]) == (7, "job-1", "in/a.csv")


def test_a_manifest_in_json_has_the_name_of_its_instrument() -> None:
    with FakeForecastClient() as client:
        answered = client.forecast(candles(seed=1, bars=120).as_dict(), pred_len=3)
    assert answered.series[0].manifest is not None
    for instrument, series in ((None, "a"), ("AAA", "AAA")):
        kept = forecast_record("a", Source(Path("in/a.csv"), instrument), "job-1", answered)
        assert kept["manifest"]["series"] == series


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_that_fails_halfway_leaves_the_old_one(tmp_path: Path, kind: Kind) -> None:
    path = tmp_path / f"all.{kind}"
    write_table(path, kind, [record("a")])
    before = path.read_bytes()

    def broken() -> Any:
        yield record("b")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_table(path, kind, broken())
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_table_without_a_forecast_leaves_no_folder(tmp_path: Path) -> None:
    for made in (False, True):
        with ForecastTable(tmp_path / "all.csv", "csv") as table:
            table.claim({"a": []})
            if made:
                table.put("print", record("a"))
        assert (tmp_path / ".all.csv.parts").exists() == made


def test_a_file_that_cannot_be_written_is_a_disk_error(tmp_path: Path) -> None:
    (tmp_path / "a.csv").mkdir()
    with pytest.raises(DiskFull, match="cannot be written"):
        write_record(tmp_path / "a.csv", "csv", record())


def test_the_next_run_finds_earlier_forecasts(tmp_path: Path) -> None:
    with ForecastFolder(tmp_path / "out", "csv") as folder:
        assert not folder.has("sub/a", "print")
        folder.put("print", record("sub/a"))
        assert folder.has("sub/a", "print")
    with ForecastFolder(tmp_path / "out", "csv") as folder:
        assert folder.has("sub/a", "print")
        assert not folder.has("sub/a", "other candles")
        assert not folder.has("sub/a", "print", also=[tmp_path / "no-chart.png"])
    with ForecastFolder(tmp_path / "out", "json") as folder:
        assert not folder.has("sub/a", "print")


def test_a_deleted_file_does_not_count(tmp_path: Path) -> None:
    with ForecastFolder(tmp_path, "csv") as folder:
        folder.put("print", record("a"))
        folder.path_of("a").unlink()
        assert not folder.has("a", "print")


def test_the_last_entry_of_the_journal_counts_and_a_damaged_line_does_not(tmp_path: Path) -> None:
    with ForecastFolder(tmp_path, "csv") as folder:
        folder.put("old", record("a"))
        folder.put("new", record("a"))
        folder.put("print", record("b"))
    with (tmp_path / JOURNAL).open("a") as journal:
        journal.write('[1]\n"text"\n{"output": "a.csv", "finger')
    with ForecastFolder(tmp_path, "csv") as folder:
        assert folder.has("a", "new")
        assert not folder.has("a", "old")
        assert folder.has("b", "print")
        folder.put("newer", record("a"))
    with ForecastFolder(tmp_path, "csv") as folder:
        assert folder.has("a", "newer")


def test_a_folder_is_used_by_one_run_at_a_time(tmp_path: Path) -> None:
    with ForecastFolder(tmp_path, "csv"), pytest.raises(InputError, match="another kronos forecast"):
        ForecastFolder(tmp_path, "csv").__enter__()
    with ForecastFolder(tmp_path, "csv"):
        pass


def test_a_folder_that_cannot_be_created_is_a_disk_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DiskFull, match="--output"):
        ForecastFolder(tmp_path / "file", "csv").__enter__()


def test_a_table_has_those_forecasts_that_exist(tmp_path: Path) -> None:
    table = ForecastTable(tmp_path / "all.csv", "csv")
    table.finish(["a"])
    assert not table.path.exists()
    with table:
        for name in ("a", "b", "left over"):
            table.put("print", record(name))
    table.finish(["b", "a", "not there yet"])
    assert pd.read_csv(table.path)["series"].unique().tolist() == ["b", "a"]
    assert json.loads((tmp_path / ".all.csv.parts" / "a.json").read_text())["series"] == "a"


def test_foreign_files_are_replaced_only_with_overwrite(tmp_path: Path) -> None:
    theirs = tmp_path / "a.csv"
    theirs.write_text("mine")
    with ForecastFolder(tmp_path, "csv") as folder:
        with pytest.raises(OutputExists, match=r"a\.csv exists .*--overwrite"):
            folder.claim({"b": [], "a": []})
        (tmp_path / "c.png").touch()
        with pytest.raises(OutputExists, match=r"c\.png"):
            folder.claim({"c": [tmp_path / "c.png"]})
        folder.claim({"a": []}, overwrite=True)
        assert theirs.read_text() == "mine"


def test_the_next_run_replaces_the_files_of_a_killed_run(tmp_path: Path) -> None:
    with ForecastFolder(tmp_path, "csv") as folder:
        folder.claim({"a": [tmp_path / "a.png"]})
        folder.path_of("a").touch()  # and killed before the journal had its line
        (tmp_path / "a.png").touch()
    with ForecastFolder(tmp_path, "csv") as folder:
        folder.claim({"a": [tmp_path / "a.png"]})
    with ForecastFolder(tmp_path, "json") as folder:
        folder.claim({"a": [tmp_path / "a.png"]})  # of the forecast in another format


def test_a_foreign_table_is_not_replaced(tmp_path: Path) -> None:
    table = ForecastTable(tmp_path / "all.csv", "csv")
    table.path.touch()
    with table:
        with pytest.raises(OutputExists, match=r"all\.csv exists"):
            table.claim({})
        table.put("print", record("a"))
    with table:
        table.claim({})
