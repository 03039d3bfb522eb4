"""The forecast of one file as it is stored: a JSON object, or rows of a table, one per bar."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Literal

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from kronos_client.contract.results import ForecastResult, forecast_columns
from kronos_model.atomic_write import atomic_write, disk_errors

Kind = Literal["csv", "parquet", "json"]
KINDS: Final[tuple[Kind, ...]] = ("csv", "parquet", "json")

Record = Mapping[str, Any]
"""The value of ``forecast_record``."""


def forecast_record(name: str, file: Path, job_id: str, result: ForecastResult) -> dict[str, Any]:
    """The forecast of one series with its origin, as JSON-compatible values."""
    series = result.series[0]
    origin = result.model_dump(mode="json", include={"model", "device", "device_warning"})
    fields = {"timestamps", "mean", "quantiles", "events", "statistics"}
    bars = series.model_dump(mode="json", include=fields)
    origin |= {"warnings": result.all_warnings(), "seed": series.seed}
    return {"series": name, "file": str(file), "job_id": job_id, **origin, **bars}


def columns_of(record: Record) -> dict[str, Sequence[Any]]:
    """The columns of a record."""
    chances = {each["event"]: each["probability"] for each in record.get("events", ())}
    return forecast_columns(
        record["series"], record["timestamps"], record["mean"], record["quantiles"], chances
    )


def write_record(path: Path, kind: Kind, record: Record) -> None:
    """Write one record as a file; as JSON it is the object itself. Raises DiskFull."""
    if kind == "json":
        with disk_errors(path), atomic_write(path) as staging:
            staging.write_text(json.dumps(record) + "\n", encoding="utf-8")
    else:
        write_table(path, kind, [record])


def write_table(path: Path, kind: Kind, records: Iterable[Record]) -> None:
    """Write all records as one table; as JSON it is a list of objects.

    After an error the file is as it was before. Raises DiskFull.
    """
    write = {"parquet": _write_parquet, "csv": _write_csv, "json": _write_json}[kind]
    with disk_errors(path), atomic_write(path) as staging:
        write(staging, records)


def _write_parquet(path: Path, records: Iterable[Record]) -> None:
    with ExitStack() as exits:
        writer: Any = None
        for record in records:
            columns = columns_of(record)
            texts = {"series", "timestamp"}
            schema = pa.schema((name, pa.string() if name in texts else pa.float64()) for name in columns)
            writer = writer or exits.enter_context(pq.ParquetWriter(path, schema))
            writer.write_table(pa.table(columns, schema=schema))


def _write_csv(path: Path, records: Iterable[Record]) -> None:
    for number, record in enumerate(records):
        rows = pd.DataFrame(columns_of(record))
        rows.to_csv(path, mode="a", header=number == 0, index=False, lineterminator="\r\n")


def _write_json(path: Path, records: Iterable[Record]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write("[")
        for number, record in enumerate(records):
            file.write(("," if number else "") + "\n" + json.dumps(record))
        file.write("\n]\n")
