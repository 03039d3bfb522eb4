"""The candle files in folders."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kronos_model.errors import CandleFileError

PARQUET_SUFFIXES: Final = (".parquet", ".pq")
SUFFIXES: Final = (".csv", ".csv.gz", *PARQUET_SUFFIXES)


def find_files(paths: Sequence[str]) -> dict[Path, Path | None]:
    """The named files, whatever they are called, and the sorted files below the named folders, each once.

    Returns:
        For each file the named folder that holds it; None for a file that is named itself.

    Raises:
        CandleFileError: a path does not exist, or is a folder without candle files.
    """
    files: dict[Path, tuple[Path, Path | None]] = {}  # by absolute path
    for path in map(Path, paths):
        if path.is_dir():
            found = files_below(path)
            if not found:
                raise CandleFileError(f"{path} has no files that end in {', '.join(SUFFIXES)}")
            for file in found:
                files.setdefault(file.absolute(), (file, path))
        elif not path.exists():
            raise CandleFileError(f"{path} does not exist")
        else:
            files[path.absolute()] = path, None
    if not files:
        raise CandleFileError("no file is named: give at least one")
    return dict(files.values())


def files_below(folder: Path) -> list[Path]:
    """The candle files in a folder and its subfolders, sorted.

    Hidden files and folders are skipped. Links to files are followed, links to folders are not.
    """
    found = []
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = [Path(parent, name) for name in files if not name.startswith(".")]
        found += [path for path in paths if path.name.lower().endswith(SUFFIXES) and path.is_file()]
    return sorted(found)


def without_suffix(file: Path) -> Path:
    """The path without the end of its name that says what kind of file it is."""
    return (file.with_suffix("") if file.suffix.lower() == ".gz" else file).with_suffix("")


def series_name(file: str) -> str:
    """The name of a series that a file of this name holds: without the suffix of a candle file."""
    return without_suffix(Path(file)).as_posix() if file.lower().endswith(SUFFIXES) else file


def distinct_names(files: Sequence[Path]) -> list[str]:
    """A different name for each file: without suffix and folders, as far as the names then differ."""
    absolute = [file.absolute() for file in files]
    num_alike = Counter(map(without_suffix, absolute))
    ends = [
        (without_suffix(file) if num_alike[without_suffix(file)] == 1 else file).name for file in absolute
    ]
    names = ends
    for num_parts in range(2, max(len(file.parts) for file in absolute) + 1):
        counts = Counter(names)
        if len(counts) == len(names):
            break
        names = [
            name if counts[name] == 1 else "/".join([*file.parts[-num_parts:-1], end])
            for name, end, file in zip(names, ends, absolute, strict=True)
        ]
    return names
