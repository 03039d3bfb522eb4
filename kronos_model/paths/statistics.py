"""Statistics of sampled futures: return, realised volatility, maximum drawdown. No torch."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronos_model.bars.columns import CLOSE


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
