"""The folder or table of forecasts, which the next run continues."""

import fcntl
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final, Self

from kronos_cli.files.record import KINDS, Kind, Record, write_record, write_table
from kronos_model.errors import DiskFull, InputError

JOURNAL: Final = ".kronos-forecasts.jsonl"


class OutputExists(InputError):
    """A forecast would replace a file that no earlier run wrote."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} exists and was not written by an earlier run: give another --output, or --overwrite to "
            "replace it"
        )


class ForecastFolder:
    """A folder with one file per forecast, and a journal with the fingerprint of each.

    The journal serves two purposes. A stopped run continues: a forecast from the same candles and options is
    not computed again. And a file that no run of this command wrote is not replaced. File times would not
    show other options or candles, and a CSV file cannot hold a fingerprint. Each line has ``output`` and
    ``fingerprint``. A null fingerprint is a claim; it is written before the file, because a run may be killed
    between the two.

    Use it in a ``with`` block, in one process at a time. A file is complete or does not exist. If the journal
    has a fingerprint, its file was written.

    Raises:
        InputError: Another process uses the folder.
        DiskFull: The folder cannot be written.
    """

    def __init__(self, folder: Path, kind: Kind) -> None:
        self.folder = folder
        self._kind: Kind = kind
        self._journal: IO[str] | None = None
        self._made_from: dict[str, str | None] = {}  # None: claimed, not yet written

    def __enter__(self) -> Self:
        path = self.folder / JOURNAL
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._journal = path.open("a+", encoding="utf-8")
        except OSError as error:
            raise DiskFull(f"{path} cannot be written: {error.strerror}; give another --output") from None
        try:
            fcntl.flock(self._journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._journal.close()
            raise InputError(f"another kronos forecast writes to {self.folder}: wait until it ends") from None
        self._journal.seek(0)
        text = self._journal.read()
        self._made_from = dict(_entries(text))
        if text and not text.endswith("\n"):  # a crash cut the last line short: begin a new one
            self._journal.write("\n")
        return self

    def __exit__(self, *_: object) -> None:
        if self._journal is not None:
            self._journal.close()

    def path_of(self, name: str, suffix: str | None = None) -> Path:
        """The file of this forecast, or the file of the same name with ``suffix``."""
        return self.folder / f"{name}.{suffix or self._kind}"

    def has(self, name: str, fingerprint: str, also: Sequence[Path] = ()) -> bool:
        """Whether the forecast and the files ``also`` exist, and its fingerprint is the same."""
        is_there = all(path.is_file() for path in (self.path_of(name), *also))
        return is_there and self._made_from.get(self._key(name)) == fingerprint

    def claim(self, files: Mapping[str, Sequence[Path]], *, overwrite: bool = False) -> None:
        """Claim in the journal these forecasts, each with its other files.

        Raises:
            OutputExists: A forecast would replace a file that no run wrote. Not raised with ``overwrite``.
            DiskFull: The journal cannot be written.
        """
        new = [name for name in files if self._key(name) not in self._made_from]
        for name in [] if overwrite else new:
            is_known = any(
                f"{name}.{kind}" in self._made_from for kind in KINDS
            )  # all formats share the charts
            for path in (self.path_of(name), *([] if is_known else files[name])):
                if path.is_file():
                    raise OutputExists(path)
        claims = dict.fromkeys(map(self._key, new))
        self._made_from |= claims
        self._note(*({"output": key, "fingerprint": None} for key in claims))

    @property
    def is_empty(self) -> bool:
        """Whether the folder never held a forecast."""
        return not any(self._made_from.values())

    def put(self, fingerprint: str, record: Record) -> None:
        """Write a forecast. Raises DiskFull."""
        name = record["series"]
        write_record(self.path_of(name), self._kind, record)
        self._made_from[self._key(name)] = fingerprint
        self._note({"output": self._key(name), "fingerprint": fingerprint, "job_id": record["job_id"]})

    def _note(self, *entries: Mapping[str, Any]) -> None:
        assert self._journal is not None, "used outside its with block"
        try:
            self._journal.writelines(json.dumps(entry) + "\n" for entry in entries)
            self._journal.flush()
        except OSError as error:
            raise DiskFull(f"{self._journal.name} cannot be written: {error.strerror}") from None

    def _key(self, name: str) -> str:
        # One folder may hold the same forecasts in several formats.
        return f"{name}.{self._kind}"


class ForecastTable:
    """One table of all forecasts, built from a hidden folder next to it with one file per forecast.

    The next run continues with the hidden folder.
    """

    def __init__(self, path: Path, kind: Kind) -> None:
        self.path = path
        self._kind: Kind = kind
        self.parts = ForecastFolder(path.with_name(f".{path.name}.parts"), "json")

    def check_free(self) -> None:
        """Raise OutputExists if the table would replace a file that no run wrote. Enter ``parts`` first."""
        if self.parts.is_empty and self.path.is_file():
            raise OutputExists(self.path)

    def write(self, names: Iterable[str]) -> int:
        """Write the table of those forecasts that exist, and return their number.

        If none exists, the table is not written. Raises DiskFull.
        """
        paths = [path for path in map(self.parts.path_of, names) if path.is_file()]
        if paths:
            records = (json.loads(path.read_text(encoding="utf-8")) for path in paths)
            write_table(self.path, self._kind, records)
        return len(paths)


def _entries(journal: str) -> Iterator[tuple[str, str | None]]:
    """Yield each output with its fingerprint. A damaged line is skipped."""
    for line in journal.splitlines():
        with suppress(ValueError, TypeError, KeyError):
            entry = json.loads(line)
            yield entry["output"], entry["fingerprint"]
