"""What benchmarks share: options, a process of their own, cases that take turns, and tables."""

import argparse
import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, NamedTuple, TypeVar

from kronos_model.devices.cores import num_cores

Case = TypeVar("Case")
Measured = TypeVar("Measured")


def options(text: str | None, **defaults: Any) -> argparse.Namespace:
    """Options of these names and types; a list takes one value or more. ``text`` describes them."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawTextHelpFormatter)
    for name, default in defaults.items():
        several = isinstance(default, list)
        kind = type(default[0] if several else default)
        number = {"nargs": "+"} if several else {}
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=default, **number)
    return parser.parse_args()


def own_process() -> ProcessPoolExecutor:
    """A pool of one fresh process, which computes on all cores."""
    os.environ["OMP_NUM_THREADS"] = str(num_cores())
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"))


def apart(function: Callable[..., Measured], *args: Any) -> Measured:
    """The value of a function that is called in a fresh process."""
    with own_process() as process:
        return process.submit(function, *args).result()


def in_turn(cases: Mapping[Case, Callable[[], Measured]], rounds: int) -> dict[Case, list[Measured]]:
    """What each case measures in each round. They take turns: other load on the machine affects all."""
    measured: dict[Case, list[Measured]] = {case: [] for case in cases}
    for _ in range(rounds):
        for case, measure in cases.items():
            measured[case].append(measure())
    return measured


def medians(rows: Iterable[Iterable[float]]) -> list[float]:
    """The median of each column."""
    return [statistics.median(column) for column in zip(*rows, strict=True)]


class Row(NamedTuple):
    """A line of a table of figures."""

    measure: str
    figure: str
    target: str = ""
    detail: str = ""


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """The median and the range."""
    return f"{statistics.median(values):{form}} ({min(values):{form}}–{max(values):{form}})"


class Table:
    """Prints rows below their titles. A column is its title and its format, such as ``jobs/s:>8.2f``."""

    def __init__(self, *columns: str) -> None:
        pairs = [column.rpartition(":") for column in columns]
        self._formats = [form for _, _, form in pairs]
        print(*(f"{title:{form.partition('.')[0].rstrip('%')}}" for title, _, form in pairs))

    def row(self, *values: Any) -> None:
        print(*(f"{value:{form}}" for value, form in zip(values, self._formats, strict=True)), flush=True)
