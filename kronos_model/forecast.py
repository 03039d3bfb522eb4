"""A finished forecast: its paths, their mean, quantiles and statistics, and chances of events. No torch.

An event is a text such as ``close>last+2% at 24``.

The grammar, in which spaces do not matter and bars count from 1, the first that is forecast:

    event = column comparison level when
    column = "open" | "high" | "low" | "close"
    comparison = ">" | ">=" | "<" | "<="
    level = price | "last" | "last" ("+" | "-") number "%"      "last" is the last close that the model read
    when = "at" bar | "by" bar                                  "by": at that bar or at one before it
    bar = number | "end"                                        "end" is the last bar
"""

import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kronos_model.bars.columns import CLOSE, COLUMNS, PRICE_COLUMNS, FloatArray, repair_bars

COMPARISONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
WANTED: Final = "an event such as 'close>last at 24', 'close<last-2% at end' or 'high>=195.5 by 10'"
_NUMBER: Final = r"[0-9]{1,20}(?:\.[0-9]{1,20})?"
_EVENT: Final = re.compile(
    rf"\s*(?P<column>{'|'.join(PRICE_COLUMNS)})\s*(?P<comparison>{'|'.join(COMPARISONS)})"
    rf"\s*(?:(?P<price>{_NUMBER})|last(?:\s*(?P<sign>[+-])\s*(?P<percent>{_NUMBER})\s*%)?)"
    r"\s+(?P<when>at|by)\s+(?:(?P<bar>[1-9][0-9]{0,9})|end)\s*",
    re.ASCII,
)
_Z_95: Final = 1.959964
"""The normal distribution's quantile 0.975."""


@dataclass(frozen=True, eq=False)
class Forecast:
    """The sampled futures of one series.

    Attributes:
        paths: (sample_count, H, 6) float32, unscaled, columns as ``COLUMNS``.
        seed: the seed that the paths were drawn with, given or not.
    """

    paths: FloatArray
    seed: int

    def repaired(self) -> "Forecast":
        """The same forecast with bars that a market could print; see ``repair_bars``."""
        return Forecast(repair_bars(self.paths), self.seed)

    @property
    def mean(self) -> NDArray[np.float64]:
        """Mean over the paths, (H, 6)."""
        return np.asarray(self.paths.sum(axis=0, dtype=np.float64) / len(self.paths))

    def quantiles(self, levels: Sequence[float]) -> NDArray[np.float64]:
        """Quantiles over the paths, (len(levels), H, 6); see ``path_quantiles``."""
        return path_quantiles(self.paths, levels)


def path_quantiles(values: NDArray[np.floating[Any]], levels: Sequence[float]) -> NDArray[np.float64]:
    """Quantiles over paths: (S, ...) → (len(levels), ...).

    The quantile at level p lies at position p · (S + 1) among the sorted paths. So an interval of 80 % holds
    the next bar in 80 % of cases if that bar is one more path. NumPy's default, p · (S − 1), holds it in 75 %
    with 30 paths (Hyndman and Fan, Sample Quantiles in Statistical Packages, 1996, definitions 6 and 7).
    Beyond the outermost path, the quantile is that path.
    """
    if len(values) == 1:  # each quantile is the path itself
        return np.repeat(values.astype(np.float64), len(levels), axis=0)
    ordered, last = np.sort(values.astype(np.float64), axis=0), len(values) - 1
    quantiles = np.empty((len(levels), *values.shape[1:]))
    for index, level in enumerate(levels):  # as np.quantile's method "weibull", in a quarter of the time
        position = min(max(len(values) * level + level - 1, 0), last)
        below = int(position)
        low, high, share = ordered[below], ordered[min(below + 1, last)], position - below
        step = high - low
        quantiles[index] = low + step * share if share < 0.5 else high - step * (1 - share)
    return quantiles


@dataclass(frozen=True)
class Event:
    """A price above or below a level, at one bar or at any bar up to it.

    Attributes:
        text: as written.
        price: the level; None for one relative to the last close, which ``change`` is then added to.
        change: as a fraction, 0.02 for ``last+2%``.
        bar: counted from 1; None for the last bar.
        is_any: whether it may also happen at a bar before.
    """

    text: str
    column: str
    comparison: str
    price: float | None
    change: float
    bar: int | None
    is_any: bool

    @classmethod
    def parse(cls, text: str) -> "Event":
        """Read an event. Raises ValueError with what is wanted."""
        found = _EVENT.fullmatch(text)
        if found is None:
            raise ValueError(WANTED)
        price, change = found["price"], float(f"{found['sign'] or ''}{found['percent'] or 0}") / 100
        return cls(
            text=text.strip(),
            column=found["column"],
            comparison=found["comparison"],
            price=None if price is None else float(price),
            change=change,
            bar=None if found["bar"] is None else int(found["bar"]),
            is_any=found["when"] == "by",
        )

    def happens(self, paths: NDArray[np.floating[Any]], last_close: float) -> NDArray[np.bool_]:
        """Whether it happens in each path: (S, H, 6) → (S,). H is at least ``bar``."""
        values = paths[:, : self.bar, COLUMNS.index(self.column)].astype(np.float64)  # (S, bars up to it)
        level = last_close * (1 + self.change) if self.price is None else self.price
        is_beyond = COMPARISONS[self.comparison](values, level)
        return np.asarray(is_beyond.any(axis=1) if self.is_any else is_beyond[:, -1])


def standard_error(num_hits: int, num_paths: int) -> float | None:
    """That of a share of independent paths, √(p · (1 − p) / n), the binomial distribution's.

    None if it happened in no path or in all of them, where the formula gives 0 and means nothing.
    """
    share = num_hits / num_paths
    return math.sqrt(share * (1 - share) / num_paths) if 0 < num_hits < num_paths else None


def wilson_interval(num_hits: int, num_paths: int) -> tuple[float, float]:
    """The interval of 95 % around a share, which holds for a share of 0 or 1 as well.

    E. B. Wilson, Probable Inference, the Law of Succession, and Statistical Inference, 1927; recommended by
    Brown, Cai and DasGupta, Interval Estimation for a Binomial Proportion, 2001.
    """
    share, z = num_hits / num_paths, _Z_95
    middle = (share + z * z / (2 * num_paths)) / (1 + z * z / num_paths)
    half = (
        z / (1 + z * z / num_paths) * math.sqrt(share * (1 - share) / num_paths + (z / (2 * num_paths)) ** 2)
    )
    return (
        0.0 if num_hits == 0 else max(0.0, middle - half),
        1.0 if num_hits == num_paths else min(1.0, middle + half),
    )


def total_return(paths: NDArray[np.floating[Any]], last_close: float) -> NDArray[np.float64]:
    """The last forecast close over the last known one, minus 1: (S, H, 6) → (S,), as fractions."""
    return np.asarray(_closes(paths, last_close)[:, -1] / last_close - 1)


def realised_volatility(paths: NDArray[np.floating[Any]], last_close: float) -> NDArray[np.float64]:
    """The root of the sum of squared log returns from close to close: (S, H, 6) → (S,).

    It is that of the whole horizon, as a fraction, and not annualised (Andersen, Bollerslev, Diebold and
    Labys, Modeling and Forecasting Realized Volatility, 2003). NaN for a path with a close at zero or below.
    """
    closes = _closes(paths, last_close)
    with np.errstate(invalid="ignore", divide="ignore"):
        volatility = np.sqrt(np.sum(np.diff(np.log(closes), axis=1) ** 2, axis=1))
    return np.where((closes > 0).all(axis=1), volatility, np.nan)


def max_drawdown(paths: NDArray[np.floating[Any]], last_close: float) -> NDArray[np.float64]:
    """The deepest fall of the close below an earlier one, as a fraction of that: (S, H, 6) → (S,), from 0.

    The last known close counts as the first one.
    """
    closes = _closes(paths, last_close)
    return np.asarray((1 - closes / np.maximum.accumulate(closes, axis=1)).max(axis=1))


def _closes(paths: NDArray[np.floating[Any]], last_close: float) -> NDArray[np.float64]:
    """The closes with the last known one before them, (S, 1 + H)."""
    closes = paths[:, :, CLOSE].astype(np.float64)
    return np.concatenate([np.full((len(closes), 1), last_close), closes], axis=1)
