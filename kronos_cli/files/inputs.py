"""The candle files that a command names: as files, folders or patterns."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path

from kronos_model.bars.files.find import SUFFIXES, distinct_names, files_below, without_suffix
from kronos_model.errors import InputError


@dataclass(frozen=True)
class Source:
    """The file of a forecast, and the instrument if it has several."""

    file: Path
    instrument: str | None = None


def find_inputs(paths: Sequence[str], output: Path) -> dict[str, Path]:
    """List each file once, in the order of ``paths`` and sorted within a folder.

    Args:
        paths: Files; folders, for all CSV and Parquet files below them without hidden ones; and patterns such
            as ``candles/*_1d.csv``, for shells that do not expand them.
        output: The file or folder where forecasts go. Files in it are left out.

    Returns:
        Each file by its forecast's name: the path without suffix below the given folder. Names that would be
        the same get the suffix too, or the folders that differ.

    Raises:
        InputError: A path does not exist, has no files or lies in ``output``.
    """
    names: dict[Path, tuple[str, Path]] = {}  # by resolved path
    for text in paths:
        found = _files_of(text)
        if not found:
            reason = f"has no files that end in {', '.join(SUFFIXES)}"
            raise InputError(f"{text} {reason if Path(text).is_dir() else 'does not exist'}")
        for name, file in found:
            resolved = file.resolve()
            if not resolved.is_relative_to(output.resolve()):
                names.setdefault(resolved, (name, file))
            elif file == Path(text):
                raise InputError(f"{file} lies where the forecasts go: give another --output")
    if not names:
        raise InputError(f"all files lie in {output}, where the forecasts go: give another --output")
    alike = Counter(name.casefold() for name, _ in names.values())  # some file systems ignore case
    longer = distinct_names(list(names))
    own = [
        other if alike[name.casefold()] > 1 else name
        for other, (name, _) in zip(longer, names.values(), strict=True)
    ]
    return dict(zip(numbered(own), (file for _, file in names.values()), strict=True))


def numbered(names: Iterable[str]) -> list[str]:
    """The names, with a number at the end of those that are the same in another case."""
    found: dict[str, str] = {}
    for name in names:
        further = (f"{name}-{number}" for number in count(2))
        free = next(each for each in chain([name], further) if each.casefold() not in found)
        found[free.casefold()] = free
    return list(found.values())


def _files_of(text: str) -> list[tuple[str, Path]]:
    path = Path(text)
    if path.is_dir():
        return [(without_suffix(file.relative_to(path)).as_posix(), file) for file in files_below(path)]
    if path.exists():
        return [(without_suffix(path).name, path)]
    if not any(sign in text for sign in "*?["):
        return []
    anchor = Path(path.anchor)
    found = sorted(anchor.glob(str(path.relative_to(anchor))))
    return [(without_suffix(file).name, file) for file in found if file.is_file()]
