"""Where the forecasts of many files are kept, and which of them need not be asked for again."""

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
    """A file lies where a forecast goes, and it is none of an earlier run's."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} is there already, and no forecast of an earlier run: give --output another place, or "
            "--overwrite to replace it"
        )


class ForecastFolder:
    """A folder with one file for each forecast, and a journal of what each was made from.

    Used in a ``with`` block, by one process at a time. Every file is there whole or not at all, and what the
    journal names is there.

    Raises InputError where another process uses the folder, DiskFull where nothing can be written there.
    """

    def __init__(self, folder: Path, kind: Kind) -> None:
        self.folder = folder
        self._kind: Kind = kind
        self._journal: IO[str] | None = None
        self._made_from: dict[str, str] = {}
        self._claimed: set[str] = set()

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
        self._claimed = {*self._made_from, *_claims(text)}
        if text and not text.endswith("\n"):  # cut short by a crash: what follows is a line of its own
            self._journal.write("\n")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._journal is not None:
            self._journal.close()

    def path_of(self, name: str, suffix: str | None = None) -> Path:
        """Where the forecast of that name is, or what is beside it."""
        return self.folder / f"{name}.{suffix or self._kind}"

    def has(self, name: str, fingerprint: str, also: Sequence[Path] = ()) -> bool:
        """Whether the forecast is there and was made from the same; ``also``: files that belong to it."""
        is_there = all(path.is_file() for path in (self.path_of(name), *also))
        return is_there and self._made_from.get(self._key(name)) == fingerprint

    def claim(self, files: Mapping[str, Sequence[Path]], *, overwrite: bool = False) -> None:
        """Note in the journal that these names are to be forecast here, each with its further files.

        Raises OutputExists, unless ``overwrite``, where one would replace a file of nobody's run; DiskFull.
        """
        new = [name for name in files if self._key(name) not in self._claimed]
        for name in [] if overwrite else new:
            is_known = any(f"{name}.{kind}" in self._claimed for kind in KINDS)  # charts are of all formats
            for path in (self.path_of(name), *([] if is_known else files[name])):
                if path.is_file():
                    raise OutputExists(path)
        if new:
            keys = [self._key(name) for name in new]
            self._claimed.update(keys)
            # Now, since a run may be killed between a file and its line.
            self._note({"claimed": keys})

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever put here."""
        return not self._made_from

    def put(self, fingerprint: str, record: Record) -> None:
        """Keep a forecast. Raises DiskFull."""
        name = record["series"]
        write_record(self.path_of(name), self._kind, record)
        self._made_from[self._key(name)] = fingerprint
        self._note({"output": self._key(name), "fingerprint": fingerprint, "job_id": record["job_id"]})

    def _note(self, entry: Mapping[str, Any]) -> None:
        assert self._journal is not None, "not entered"
        try:
            self._journal.write(json.dumps(entry) + "\n")
            self._journal.flush()
        except OSError as error:
            raise DiskFull(f"{self._journal.name} cannot be written: {error.strerror}") from None

    def _key(self, name: str) -> str:
        """One folder may hold the same forecasts in several formats."""
        return f"{name}.{self._kind}"


class ForecastTable:
    """One table of all forecasts, put together from a hidden folder beside it with a file for each.

    The folder is what the next run goes on from.
    """

    def __init__(self, path: Path, kind: Kind) -> None:
        self.path = path
        self._kind: Kind = kind
        self.parts = ForecastFolder(path.with_name(f".{path.name}.parts"), "json")

    def check_free(self) -> None:
        """Raises OutputExists where the table would replace a file that no run of this command wrote.

        For within the parts' block.
        """
        if self.parts.is_empty and self.path.is_file():
            raise OutputExists(self.path)

    def write(self, names: Iterable[str]) -> int:
        """Write the table of these forecasts, as far as they are there; how many it has.

        Where there is none, the table stays as it is. Raises DiskFull.
        """
        paths = [path for path in map(self.parts.path_of, names) if path.is_file()]
        if paths:
            records = (json.loads(path.read_text(encoding="utf-8")) for path in paths)
            write_table(self.path, self._kind, records)
        return len(paths)


def _entries(journal: str) -> Iterator[tuple[str, str]]:
    """From each output to what it was made from."""
    for entry in _lines(journal):
        with suppress(KeyError):
            yield entry["output"], entry["fingerprint"]


def _claims(journal: str) -> Iterator[str]:
    """The outputs that runs said they would write."""
    for entry in _lines(journal):
        claimed = entry.get("claimed")
        yield from claimed if isinstance(claimed, list) else ()


def _lines(journal: str) -> Iterator[dict[str, Any]]:
    """A line that was cut short says nothing."""
    for line in journal.splitlines():
        with suppress(ValueError):
            entry = json.loads(line)
            if isinstance(entry, dict):
                yield entry
