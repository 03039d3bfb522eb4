"""The loss of quantiles. No torch, and no SciPy: clients correct quantiles too."""

from collections.abc import Sequence

import numpy as np

from kronos_model.evaluation.window_arrays import Array


def pinball_loss(levels: Sequence[float], quantiles: Array, actual: Array) -> Array:
    """The loss of quantiles (num_levels, W, H), of the same shape: lowest, on average, for the true ones."""
    error = actual - quantiles
    level = np.asarray(levels)[:, None, None]
    return np.maximum(level * error, (level - 1) * error)
