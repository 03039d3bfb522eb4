"""A file's forecast as it is kept: a JSON object, or rows of a table, one for each bar."""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from kronos_client.contract.results import ForecastResult
from kronos_model.atomic_write import atomic_write, disk_errors
from kronos_model.bars.columns import COLUMNS

Kind = Literal["csv", "parquet", "json"]
KINDS: Final[tuple[Kind, ...]] = ("csv", "parquet", "json")

Record = Mapping[str, Any]
"""What ``forecast_record`` makes."""


def forecast_record(name: str, file: Path, job_id: str, result: ForecastResult) -> dict[str, Any]:
    """All that is known of the forecast of one series, JSON-compatible."""
    series = result.series[0]
    return {
        "series": name,
        "file": str(file),
        "job_id": job_id,
        "model": result.model.model_dump(),
        "device": result.device,
        "device_warning": result.device_warning,
        "warnings": list(result.warnings),
        "seed": series.seed,
        "timestamps": list(series.timestamps),
        "mean": {name: list(values) for name, values in series.mean.items()},
        "quantiles": {
            level: {name: list(values) for name, values in columns.items()}
            for level, columns in series.quantiles.items()
        },
    }


def columns_of(record: Record) -> dict[str, list[Any]]:
    """As a table: ``series``, ``timestamp``, the mean, and each quantile as ``close_q0.1``."""
    timestamps = record["timestamps"]
    table: dict[str, list[Any]] = {"series": [record["series"]] * len(timestamps), "timestamp": timestamps}
    table |= {name: record["mean"][name] for name in COLUMNS if name in record["mean"]}
    for level in sorted(record["quantiles"], key=float):
        quantile = record["quantiles"][level]
        table |= {f"{name}_q{level}": quantile[name] for name in COLUMNS if name in quantile}
    return table


class Writer(Protocol):
    """Takes records one after the other."""

    def __call__(self, record: Record, /) -> None: ...


@contextmanager
def table_writer(path: Path, kind: Kind) -> Iterator[Writer]:
    """Writes all records to one file, which is there whole at the end of the block, or as it was before.

    Raises DiskFull where it cannot be written.
    """
    with disk_errors(path), atomic_write(path) as staging:
        if kind == "parquet":
            with _ParquetRows(staging) as rows:
                yield rows
        elif kind == "csv":
            with staging.open("w", newline="", encoding="utf-8") as file:
                yield _CsvRows(csv.writer(file))
        else:
            with staging.open("w", encoding="utf-8") as file:
                file.write("[")
                yield _JsonList(file)
                file.write("\n]\n")


def write_record(path: Path, kind: Kind, record: Record) -> None:
    """One record as a file of its own; as JSON the object itself. Raises DiskFull."""
    if kind == "json":
        with disk_errors(path), atomic_write(path) as staging:
            staging.write_text(json.dumps(record) + "\n", encoding="utf-8")
        return
    with table_writer(path, kind) as write:
        write(record)


def write_table(path: Path, kind: Kind, records: Iterable[Record]) -> None:
    """All of them as one table; as JSON a list of objects. Raises DiskFull."""
    with table_writer(path, kind) as write:
        for record in records:
            write(record)


class _ParquetRows:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: Any = None

    def __enter__(self) -> "_ParquetRows":
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def __call__(self, record: Record) -> None:
        texts = {"series", "timestamp"}
        columns = columns_of(record)
        schema = pa.schema((name, pa.string() if name in texts else pa.float64()) for name in columns)
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, schema)
        self._writer.write_table(pa.table(columns, schema=schema))


class _CsvRows:
    def __init__(self, rows: Any) -> None:
        self._rows = rows
        self._has_header = False

    def __call__(self, record: Record) -> None:
        columns = columns_of(record)
        if not self._has_header:
            self._rows.writerow(columns)
            self._has_header = True
        self._rows.writerows(zip(*columns.values(), strict=True))


class _JsonList:
    def __init__(self, file: Any) -> None:
        self._file = file
        self._separator = "\n"

    def __call__(self, record: Record) -> None:
        self._file.write(self._separator + json.dumps(record))
        self._separator = ",\n"
