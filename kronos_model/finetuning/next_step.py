"""What to try after a run whose model is not better, from what the run measured. No torch."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from kronos_model.evaluation.naive import BOOTSTRAP
from kronos_model.evaluation.report import GOOD_COVERAGE, MIN_PATHS, START

MIN_GAIN: Final = 0.02
"""The least share by which the CRPS of the first bars ahead is lower, to call a shorter horizon better."""
MIN_FALL: Final = 0.005
"""The least share by which the validation loss fell in the last epoch, to call it still falling."""


def next_step(
    model: Mapping[str, Any],
    bootstrap: Mapping[str, Any],
    epochs: Sequence[Mapping[str, Any]],
    *,
    is_one_cycle: bool,
    num_paths: int,
) -> str | None:
    """The one thing to try next, with the reason; None if the model is better, or nothing shows what to try.

    The rules go from what no training mends to what more or less of it may: a comparison that cannot tell,
    intervals, the horizon, then the curve of the validation loss.

    Args:
        model: the trained model's part of a report, with ``by_horizon``.
        bootstrap: that of the bootstrap.
        epochs: events of the last stage's epochs.
        is_one_cycle: whether its learning rate falls until the last one.
        num_paths: paths of each window.
    """
    against = [model["against"][other] for other in (BOOTSTRAP, START) if other in model["against"]]
    if all(by["verdict"] == "better" for by in against):
        return None
    if any(by["low"] is None for by in against):
        return (
            "Next, try more data to compare on: the windows are too few, or begin too close together, for an "
            "interval. Give more candles, or raise data.test_fraction."
        )
    scores, held = model["scores"], model["scores"]["coverage"]["0.8"]
    low, high = GOOD_COVERAGE
    if num_paths >= MIN_PATHS and not low <= held <= high and scores["mase"] <= bootstrap["mase"]:
        return (
            "Next, try calibration alone (kronos calibrate): the median's error is no larger than the "
            f"bootstrap's (MASE {scores['mase']:.3g}, {bootstrap['mase']:.3g}), but the 80 % interval held "
            f"{100 * held:.0f} %."
        )
    ours, theirs = (np.cumsum(each["by_horizon"]["crps_scaled"]) for each in (model, bootstrap))
    gains = 1 - ours / theirs
    if gains[-1] < MIN_GAIN <= gains.max():
        bars = int(np.flatnonzero(gains >= MIN_GAIN)[-1]) + 1
        return (
            f"Next, try a shorter horizon, data.pred_len {bars}: over the first {bars} bars ahead the CRPS "
            f"is {100 * gains[bars - 1]:.1f} % below the bootstrap's, over all {len(gains)} "
            f"{abs(100 * gains[-1]):.1f} % {'below' if gains[-1] >= 0 else 'above'}."
        )
    if not epochs:
        return None
    return _from_curve([epoch["validation_loss"] for epoch in epochs], epochs[-1]["stage"], is_one_cycle)


def _from_curve(losses: Sequence[float], stage: str, is_one_cycle: bool) -> str:
    best, number = int(np.argmin(losses)) + 1, len(losses)
    if 1 < best < number and is_one_cycle:
        return (
            f"Next, try fewer epochs, {stage}.epochs {best}: the validation loss was lowest after epoch "
            f"{best} of {number}, and with fewer the learning rate has fallen by then."
        )
    if best == number and (number == 1 or losses[-1] < (1 - MIN_FALL) * losses[-2]):
        return (
            f"Next, try more epochs than {number}: the validation loss was still falling at the end of the "
            f"{stage}'s."
        )
    reason = f"was lowest after epoch {best} of {number}: later ones learned the training windows by heart"
    if best == number:
        reason = f"no longer falls after {number} epochs, and did not rise either"
    return f"Next, try more data: the {stage}'s validation loss {reason}."
