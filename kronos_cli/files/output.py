"""The forecasts as files: a JSON object each, or rows of a table, in a folder that the next run continues."""

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Literal, Self

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from kronos_cli.files.inputs import Source
from kronos_client.contract.results import ForecastResult, forecast_columns, long_columns
from kronos_model.atomic_write import atomic_write, disk_errors
from kronos_model.checkpoints.names import caution_in
from kronos_model.errors import DiskFull, InputError
from kronos_model.file_lock import lock

Kind = Literal["csv", "parquet", "json"]
KINDS: Final[tuple[Kind, ...]] = ("csv", "parquet", "json")

Record = Mapping[str, Any]
"""The value of ``forecast_record``."""
NOT_IN_RECORDS: Final = {"id", "timestamps_from", "lookback", "paths", "warnings", "scoring"}
"""Fields of a series' forecast: large, of feeds, or in another form."""
JOURNAL: Final = ".kronos-forecasts.jsonl"


@dataclass(frozen=True)
class LongForm:
    """A table in the form of Chronos' ``predict_df``: see ``long_columns``."""

    targets: tuple[str, ...]
    titles: tuple[str, str]


def forecast_record(name: str, source: Source, job_id: str, result: ForecastResult) -> dict[str, Any]:
    """The forecast of one series with its origin, as JSON-compatible values."""
    series = result.series[0]
    origin = result.model_dump(mode="json", include={"model", "device", "device_warning", "engine"})
    bars = series.model_dump(mode="json", exclude=NOT_IN_RECORDS)
    if bars["manifest"] is not None:
        bars["manifest"]["series"] = source.instrument or name  # the job's id says nothing
    origin |= {"warnings": result.all_warnings(), "seed": series.seed}
    place = {"series": name, "file": str(source.file), "instrument": source.instrument, "job_id": job_id}
    return {**place, **origin, **bars}


def columns_of(record: Record, form: LongForm | None = None) -> Mapping[str, Sequence[Any]]:
    """The columns of a record."""
    if form is not None:
        name = record.get("instrument") or record["series"]
        return long_columns(name, record, form.targets, form.titles)
    caution = caution_in(record["warnings"]) or ""  # forecasts of several models have the same columns
    return forecast_columns(record["series"], record, caution)


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


class OutputExists(InputError):
    """A forecast would replace a file that no earlier run wrote."""

    def __init__(self, path: Path) -> None:
        remedy = "give another --output, or --overwrite to replace it"
        super().__init__(f"{path} exists and was not written by an earlier run: {remedy}")


class ForecastFolder:
    """A folder with one file per forecast, and a journal with the fingerprint of each.

    With the journal a stopped run continues: a forecast from the same candles and options is not repeated.
    A file that no run of this command wrote is not replaced. Each line has ``output`` and ``fingerprint``.
    A null fingerprint is a claim, written before the file, because a run may be killed between the two.
    Lines of 0.1.0 have no ``model``, the version that made the forecast.

    Use it in a ``with`` block, in one process at a time. A file is complete or does not exist. If the journal
    has a fingerprint, its file was written. ``path`` is the output, and ``charts`` the folder of its charts.

    Raises:
        InputError: Another process uses the folder.
        DiskFull: The folder cannot be written.
    """

    def __init__(self, path: Path, kind: Kind) -> None:
        self.path = self.charts = self._folder = path
        self._kind = kind
        self._journal: IO[str] | None = None
        self._made_from: dict[str, str | None] = {}  # None: claimed, not yet written
        self._made_by: dict[str, str | None] = {}

    def __enter__(self) -> Self:
        path = self._folder / JOURNAL
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._journal = path.open("a+", encoding="utf-8")
        except OSError as error:
            raise DiskFull(f"{path} cannot be written: {error.strerror}; give another --output") from None
        text = f"another kronos forecast writes to {self._folder}: wait until it ends"
        lock(self._journal, InputError(text))
        self._journal.seek(0)
        text = self._journal.read()
        for line in text.splitlines():
            with suppress(ValueError, TypeError, KeyError):  # a damaged line
                entry = json.loads(line)
                self._made_from[entry["output"]] = entry["fingerprint"]
                self._made_by[entry["output"]] = entry.get("model")
        if text and not text.endswith("\n"):  # a crash cut the last line short: begin a new one
            self._journal.write("\n")
        return self

    def __exit__(self, *_: object) -> None:
        if self._journal is not None:
            self._journal.close()

    def path_of(self, name: str) -> Path:
        """The file of this forecast."""
        return self._folder / self._key(name)

    def has(self, name: str, fingerprint: str, also: Sequence[Path] = (), model: str | None = None) -> bool:
        """Whether the forecast and the files ``also`` exist, and its fingerprint is the same.

        Also its ``model``, unless that is not known.
        """
        is_there = all(path.is_file() for path in (self.path_of(name), *also))
        key = self._key(name)
        is_same = model is None or self._made_by.get(key) in (None, model)
        return is_there and is_same and self._made_from.get(key) == fingerprint

    def claim(self, files: Mapping[str, Sequence[Path]], *, overwrite: bool = False) -> None:
        """Claim in the journal these forecasts, each with its other files.

        Raises:
            OutputExists: A forecast would replace a file that no run wrote. Not raised with ``overwrite``.
            DiskFull: The journal cannot be written.
        """
        new = [name for name in files if self._key(name) not in self._made_from]
        for name in [] if overwrite else new:
            # All formats share the charts.
            is_known = any(f"{name}.{kind}" in self._made_from for kind in KINDS)
            for path in (self.path_of(name), *([] if is_known else files[name])):
                if path.is_file():
                    raise OutputExists(path)
        claims = dict.fromkeys(map(self._key, new))
        self._made_from |= claims
        self._note(*({"output": key, "fingerprint": None} for key in claims))

    def put(self, fingerprint: str, record: Record) -> None:
        """Write a forecast. Raises DiskFull."""
        name = record["series"]
        write_record(self.path_of(name), self._kind, record)
        key, model = self._key(name), "{id}@{revision}".format(**record["model"])
        self._made_from[key], self._made_by[key] = fingerprint, model
        entry = {"output": key, "fingerprint": fingerprint, "model": model, "job_id": record["job_id"]}
        self._note(entry)

    def finish(self, names: Iterable[str]) -> None:
        """Write what is made of all these forecasts. Raises DiskFull."""

    def _note(self, *entries: Mapping[str, Any]) -> None:
        assert self._journal is not None, "used outside its with block"
        with disk_errors(self._folder / JOURNAL):
            self._journal.writelines(json.dumps(entry) + "\n" for entry in entries)
            self._journal.flush()

    def _key(self, name: str) -> str:
        # One folder may hold the same forecasts in several formats.
        return f"{name}.{self._kind}"


class ForecastTable(ForecastFolder):
    """One table of all forecasts, made of a hidden folder next to it, which the next run continues."""

    def __init__(self, path: Path, kind: Kind, form: LongForm | None = None) -> None:
        super().__init__(path.with_name(f".{path.name}.parts"), "json")
        self.path, self.charts = path, path.with_suffix("")
        self._table_kind, self._form = kind, form

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        if not any(self._made_from.values()):  # there is nothing that a next run could continue
            shutil.rmtree(self._folder, ignore_errors=True)

    def claim(self, files: Mapping[str, Sequence[Path]], *, overwrite: bool = False) -> None:
        """Claim the table too. If the folder never had a forecast, no run wrote the table that is there."""
        if not overwrite and not any(self._made_from.values()) and self.path.is_file():
            raise OutputExists(self.path)
        super().claim(files, overwrite=overwrite)

    def finish(self, names: Iterable[str]) -> None:
        """Write the table of those forecasts that exist, if there are any. Raises DiskFull."""
        paths = [path for path in map(self.path_of, names) if path.is_file()]
        if paths:
            records = (json.loads(path.read_text(encoding="utf-8")) for path in paths)
            write_table(self.path, self._table_kind, records, self._form)
