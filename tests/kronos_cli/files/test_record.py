"""The three formats of a forecast. Each has the same content."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from kronos_cli.files.inputs import Source
from kronos_cli.files.record import KINDS, Kind, columns_of, forecast_record, write_record, write_table
from kronos_model.errors import DiskFull
from tests.worker.inference.forecasts import result

NAMES = ["open", "high", "low", "close", "volume", "amount"]
COLUMNS = ["series", "timestamp", *NAMES, *(f"{name}_q0.1" for name in NAMES), *(f"{n}_q0.9" for n in NAMES)]


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


def test_json_has_the_origin_of_a_forecast(tmp_path: Path) -> None:
    write_record(tmp_path / "a.json", "json", record())
    kept = json.loads((tmp_path / "a.json").read_text())
    assert list(kept) == [
        "series", "file", "instrument", "job_id", "model", "device", "device_warning", "engine", "warnings",
        "seed", "timestamps", "mean", "quantiles", "events", "statistics",
    ]  # fmt: skip
    assert (kept["seed"], kept["job_id"], kept["file"]) == (7, "job-1", "in/a.csv")


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


def test_a_file_that_cannot_be_written_is_a_disk_error(tmp_path: Path) -> None:
    (tmp_path / "a.csv").mkdir()
    with pytest.raises(DiskFull, match="cannot be written"):
        write_record(tmp_path / "a.csv", "csv", record())
