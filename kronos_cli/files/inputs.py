"""The candle files that a command names: as files, folders or patterns."""

from collections.abc import Sequence
from pathlib import Path

from kronos_model.bars.files.find import SUFFIXES, files_below
from kronos_model.errors import InputError


def find_inputs(paths: Sequence[str], output: Path) -> dict[str, Path]:
    """List each file once, in the order of ``paths`` and sorted within a folder.

    Args:
        paths: Files; folders, for all CSV and Parquet files below them without hidden ones; and patterns such
            as ``candles/*_1d.csv``, for shells that do not expand them.
        output: The file or folder where forecasts go. Files in it are left out.

    Returns:
        Each file by its forecast's name: the path without suffix below the given folder.

    Raises:
        InputError: A path does not exist, has no files or lies in ``output``, or two files have one name.
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
    by_name: dict[str, Path] = {}
    for name, file in names.values():
        other = by_name.setdefault(name.casefold(), file)  # some file systems ignore case
        if other != file:
            remedy = "rename one, or give the folder that contains both"
            raise InputError(f"{other} and {file} would both be called {name!r}: {remedy}")
    return dict(names.values())


def _files_of(text: str) -> list[tuple[str, Path]]:
    path = Path(text)
    if path.is_dir():
        return [(file.relative_to(path).with_suffix("").as_posix(), file) for file in files_below(path)]
    if path.exists():
        return [(path.stem, path)]
    if not any(sign in text for sign in "*?["):
        return []
    anchor = Path(path.anchor)
    found = sorted(anchor.glob(str(path.relative_to(anchor))))
    return [(file.stem, file) for file in found if file.is_file()]
