"""The output of earlier runs, and when it is used again."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from kronos_cli.files.inputs import Source
from kronos_cli.files.output import JOURNAL, ForecastFolder, ForecastTable, OutputExists
from kronos_cli.files.record import forecast_record
from kronos_model.errors import DiskFull, InputError
from tests.worker.inference.forecasts import result


def record(name: str, close: float = 10.0) -> dict[str, Any]:
    return forecast_record(name, Source(Path(f"{name}.csv")), "job", result(close))


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
