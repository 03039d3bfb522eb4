"""The forecast of one file as it is stored: a JSON object, or rows of a table, one per bar."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from kronos_cli.files.inputs import Source
from kronos_client.contract.results import ForecastResult, forecast_columns, long_columns
from kronos_model.atomic_write import atomic_write, disk_errors

Kind = Literal["csv", "parquet", "json"]
KINDS: Final[tuple[Kind, ...]] = ("csv", "parquet", "json")

Record = Mapping[str, Any]
"""The value of ``forecast_record``."""


@dataclass(frozen=True)
class LongForm:
    """A table in the form of Chronos' ``predict_df``: see ``long_columns``."""

    targets: tuple[str, ...]
    titles: tuple[str, str]


def forecast_record(name: str, source: Source, job_id: str, result: ForecastResult) -> dict[str, Any]:
    """The forecast of one series with its origin, as JSON-compatible values."""
    series = result.series[0]
    origin = result.model_dump(mode="json", include={"model", "device", "device_warning", "engine"})
    fields = {"timestamps", "mean", "quantiles", "events", "statistics"}
    bars = series.model_dump(mode="json", include=fields)
    origin |= {"warnings": result.all_warnings(), "seed": series.seed}
    place = {"series": name, "file": str(source.file), "instrument": source.instrument, "job_id": job_id}
    return {**place, **origin, **bars}


def columns_of(record: Record, form: LongForm | None = None) -> Mapping[str, Sequence[Any]]:
    """The columns of a record."""
    if form is not None:
        name = record.get("instrument") or record["series"]
        mean, quantiles = record["mean"], record["quantiles"]
        return long_columns(name, record["timestamps"], mean, quantiles, form.targets, form.titles)
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


def write_table(path: Path, kind: Kind, records: Iterable[Record], form: LongForm | None = None) -> None:
    """Write all records as one table; as JSON it is a list of objects.

    After an error the file is as it was before. Raises DiskFull.
    """
    with disk_errors(path), atomic_write(path) as staging:
        if kind == "json":
            _write_json(staging, records)
        else:
            write = _write_parquet if kind == "parquet" else _write_csv
            write(staging, (columns_of(record, form) for record in records))


def _write_parquet(path: Path, tables: Iterable[Mapping[str, Sequence[Any]]]) -> None:
    with ExitStack() as exits:
        writer: Any = None
        for columns in tables:
            kinds = (
                (name, pa.string() if isinstance(values[0], str) else pa.float64())
                for name, values in columns.items()
            )
            schema = pa.schema(kinds)
            writer = writer or exits.enter_context(pq.ParquetWriter(path, schema))
            writer.write_table(pa.table(columns, schema=schema))


def _write_csv(path: Path, tables: Iterable[Mapping[str, Sequence[Any]]]) -> None:
    for number, columns in enumerate(tables):
        rows = pd.DataFrame(columns)
        rows.to_csv(path, mode="a", header=number == 0, index=False, lineterminator="\r\n")


def _write_json(path: Path, records: Iterable[Record]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write("[")
        for number, record in enumerate(records):
            file.write(("," if number else "") + "\n" + json.dumps(record))
        file.write("\n]\n")
