"""The candle files that a command names: as files, folders or patterns."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kronos_model.bars.files.find import SUFFIXES, files_below
from kronos_model.errors import InputError


@dataclass(frozen=True)
class ForecastInput:
    """A candle file. ``name``, its forecast's name, is the path without suffix below the given folder."""

    path: Path
    name: str


def find_inputs(paths: Sequence[str], output: Path) -> list[ForecastInput]:
    """List each file once, in the order of ``paths`` and sorted within a folder.

    Args:
        paths: Files; folders, for all CSV and Parquet files below them without hidden ones; and patterns such
            as ``candles/*_1d.csv``, for shells that do not expand them.
        output: The file or folder where forecasts go. Files in it are left out.

    Raises:
        InputError: A path does not exist, has no files or lies in ``output``, or two files have one name.
    """
    found: dict[Path, ForecastInput] = {}
    for text in paths:
        inputs = list(_inputs_of(text))
        if not inputs:
            reason = f"has no files that end in {', '.join(SUFFIXES)}"
            raise InputError(f"{text} {reason if Path(text).is_dir() else 'does not exist'}")
        for one in inputs:
            resolved = one.path.resolve()
            if not resolved.is_relative_to(output.resolve()):
                found.setdefault(resolved, one)
            elif one.path == Path(text):
                raise InputError(f"{one.path} lies where the forecasts go: give another --output")
    if not found:
        raise InputError(f"all files lie in {output}, where the forecasts go: give another --output")
    by_name: dict[str, Path] = {}
    for one in found.values():
        other = by_name.setdefault(one.name.casefold(), one.path)  # some file systems ignore case
        if other != one.path:
            remedy = "rename one, or give the folder that contains both"
            raise InputError(f"{other} and {one.path} would both be called {one.name!r}: {remedy}")
    return list(found.values())


def _inputs_of(text: str) -> Iterator[ForecastInput]:
    path = Path(text)
    if path.is_dir():
        for file in files_below(path):
            yield ForecastInput(file, file.relative_to(path).with_suffix("").as_posix())
    elif path.exists():
        yield ForecastInput(path, path.stem)
    elif any(sign in text for sign in "*?["):
        anchor = Path(path.anchor)
        for file in sorted(anchor.glob(str(path.relative_to(anchor)))):
            if file.is_file():
                yield ForecastInput(file, file.stem)
