"""The folder or table that keeps forecasts, and what is in it already."""

import fcntl
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from kronos_cli.files.record import KINDS, Kind, Record, write_record, write_table
from kronos_model.errors import DiskFull, InputError

JOURNAL: Final = ".kronos-forecasts.jsonl"


class OutputExists(InputError):
    """A forecast would replace a file that no earlier run wrote."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} is there already, and no forecast of an earlier run: give --output another place, or "
            "--overwrite to replace it"
        )


class ForecastFolder:
    """A folder with one file for each forecast, and a journal of what each was made from.

    The journal protects two things. A run that was stopped goes on where it was: what is there from the same
    candles and options is not computed again. And a file that no run of this command wrote is not replaced.
    Times of files would not show other options or candles, and a CSV file has no place for a fingerprint.
    Each line is ``output`` and ``fingerprint``; the fingerprint is null in a claim, which is written before
    the file, since a run may be killed between the two.

    Used in a ``with`` block, by one process at a time. Every file is there whole or not at all, and what the
    journal gives a fingerprint for is there.

    Raises:
        InputError: another process uses the folder.
        DiskFull: nothing can be written there.
    """

    def __init__(self, folder: Path, kind: Kind) -> None:
        self.folder = folder
        self._kind: Kind = kind
        self._journal: IO[str] | None = None
        self._made_from: dict[str, str | None] = {}  # None: claimed, and not there yet

    def __enter__(self) -> Self:
        path = self.folder / JOURNAL
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._journal = path.open("a+", encoding="utf-8")
        except OSError as error:
            raise DiskFull(
                f"{path} cannot be written: {error.strerror}; give --output another place"
            ) from None
        try:
            fcntl.flock(self._journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._journal.close()
            raise InputError(f"another kronos forecast writes to {self.folder}: wait for it") from None
        self._journal.seek(0)
        text = self._journal.read()
        self._made_from = dict(_entries(text))
        if text and not text.endswith("\n"):  # cut short by a crash: what follows is a line of its own
            self._journal.write("\n")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._journal is not None:
            self._journal.close()

    def path_of(self, name: str, suffix: str | None = None) -> Path:
        """The file of this forecast, or with ``suffix`` another file of the same name."""
        return self.folder / f"{name}.{suffix or self._kind}"

    def has(self, name: str, fingerprint: str, also: Sequence[Path] = ()) -> bool:
        """Whether the forecast is there and was made from the same; ``also``: files that belong to it."""
        is_there = all(path.is_file() for path in (self.path_of(name), *also))
        return is_there and self._made_from.get(self._key(name)) == fingerprint

    def claim(self, files: Mapping[str, Sequence[Path]], *, overwrite: bool = False) -> None:
        """Note in the journal that these names are to be forecast here, each with its further files.

        Raises:
            OutputExists: a forecast would replace a file that no run wrote; not with ``overwrite``.
            DiskFull: the journal cannot be written.
        """
        new = [name for name in files if self._key(name) not in self._made_from]
        for name in [] if overwrite else new:
            is_known = any(f"{name}.{kind}" in self._made_from for kind in KINDS)  # charts are of all formats
            for path in (self.path_of(name), *([] if is_known else files[name])):
                if path.is_file():
                    raise OutputExists(path)
        claims = dict.fromkeys(map(self._key, new))
        self._made_from |= claims
        self._note(*({"output": key, "fingerprint": None} for key in claims))

    @property
    def is_empty(self) -> bool:
        """Whether no forecast was ever put here."""
        return not any(self._made_from.values())

    def put(self, fingerprint: str, record: Record) -> None:
        """Keep a forecast. Raises DiskFull."""
        name = record["series"]
        write_record(self.path_of(name), self._kind, record)
        self._made_from[self._key(name)] = fingerprint
        self._note({"output": self._key(name), "fingerprint": fingerprint, "job_id": record["job_id"]})

    def _note(self, *entries: Mapping[str, Any]) -> None:
        assert self._journal is not None, "not entered"
        try:
            self._journal.writelines(json.dumps(entry) + "\n" for entry in entries)
            self._journal.flush()
        except OSError as error:
            raise DiskFull(f"{self._journal.name} cannot be written: {error.strerror}") from None

    def _key(self, name: str) -> str:
        """One folder may hold the same forecasts in several formats."""
        return f"{name}.{self._kind}"


class ForecastTable:
    """One table of all forecasts, put together from a hidden folder with one file for each forecast.

    The hidden folder lies next to the table; the next run goes on from it.
    """

    def __init__(self, path: Path, kind: Kind) -> None:
        self.path = path
        self._kind: Kind = kind
        self.parts = ForecastFolder(path.with_name(f".{path.name}.parts"), "json")

    def check_free(self) -> None:
        """Raise OutputExists if the table would replace a file that no run wrote.

        Call it within the block of ``parts``.
        """
        if self.parts.is_empty and self.path.is_file():
            raise OutputExists(self.path)

    def write(self, names: Iterable[str]) -> int:
        """Write the table of those forecasts that are there, and return how many there are.

        Without any, the table stays as it is. Raises DiskFull.
        """
        paths = [path for path in map(self.parts.path_of, names) if path.is_file()]
        if paths:
            records = (json.loads(path.read_text(encoding="utf-8")) for path in paths)
            write_table(self.path, self._kind, records)
        return len(paths)


def _entries(journal: str) -> Iterator[tuple[str, str | None]]:
    """From each output to what it was made from. A line that was cut short is passed over."""
    for line in journal.splitlines():
        with suppress(ValueError, TypeError, KeyError):
            entry = json.loads(line)
            yield entry["output"], entry["fingerprint"]
