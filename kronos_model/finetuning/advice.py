"""What a run warns of before it trains, and what to try after one whose model is not better. No torch."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from kronos_model.bars.columns import Instrument
from kronos_model.evaluation.naive import BOOTSTRAP
from kronos_model.evaluation.report import GOOD_COVERAGE, MIN_PATHS, START
from kronos_model.evaluation.windows import MIN_GROUPS, Windows, spread, window_times
from kronos_model.finetuning.config import FinetuneConfig
from kronos_model.finetuning.split import Split
from kronos_model.text import printable

SHOWN: Final = 5
"""Instruments named in a warning: a market has thousands."""
MIN_GAIN: Final = 0.02
"""The least share by which the CRPS of the first bars ahead is lower, to call a shorter horizon better."""
MIN_FALL: Final = 0.005
"""The least share by which the validation loss fell in the last epoch, to call it still falling."""


def why_not_compared(split: Split, config: FinetuneConfig) -> str | None:
    """The reason if no comparison follows training; None if one does."""
    data, num_bars = config.data, split.num_bars["test"]
    if not config.evaluation.windows:
        return "evaluation.windows is 0"
    if len(split.test):
        return None
    if not data.test_fraction and data.test_from is None:
        return "data.test_fraction is 0"
    needed = f"a window needs {data.pred_len} bars in the test part and {data.lookbacks.max} before"
    return f"{needed}, and no instrument has them ({num_bars} in all): make data.test_fraction larger"


def split_warnings(split: Split, instruments: Sequence[Instrument], config: FinetuneConfig) -> list[str]:
    """What weakens training or the comparison after it, with the numbers needed."""
    data, cuts = config.data, split.cuts
    needs = f"{data.window} bars before {cuts['validation']}"
    texts = [_without_windows(split.train, instruments, "train", needs)]
    is_wanted = bool(config.evaluation.windows and cuts["test"])
    if is_wanted and (reason := why_not_compared(split, config)) is not None:
        texts.append(f"No comparison will follow training: {reason}.")
    elif is_wanted:
        needs = f"{data.pred_len} bars from {cuts['test']} on and {data.lookbacks.max} before"
        texts.append(_without_windows(split.test, instruments, "test", needs))
        compared = spread(split.test, config.evaluation.windows)
        num_groups = window_times(instruments, compared, data.lookbacks.max, data.pred_len).num_groups
        if num_groups < MIN_GROUPS:
            texts.append(
                f"The comparison after training cannot be conclusive: its windows lie in {num_groups} "
                f"separate stretches of {data.pred_len} bars, and {MIN_GROUPS} are needed, about "
                f"{MIN_GROUPS * data.pred_len} bars to test on (there are {split.num_bars['test']}). Give "
                "more bars, or raise data.test_fraction or evaluation.windows, or lower data.pred_len."
            )
    return [text for text in texts if text]


def _without_windows(windows: Windows, instruments: Sequence[Instrument], use: str, needs: str) -> str:
    """A sentence if some instruments have no window in a part."""
    used = set(windows.instrument_index.tolist())
    names = [printable(each.name) for index, each in enumerate(instruments) if index not in used]
    if not names:
        return ""
    shown = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN:,} more" if names[SHOWN:] else "")
    count = f"{len(names):,} of {len(instruments):,} instruments"
    return f"{count} have no window to {use} on, which needs {needs}: {shown}."


def next_step(
    model: Mapping[str, Any], bootstrap: Mapping[str, Any], losses: Sequence[float], config: FinetuneConfig
) -> str | None:
    """The one thing to try next, with the reason; None if the model is better, or nothing shows what to try.

    The rules go from what no training mends to what more or less of it may: a comparison that cannot tell,
    intervals, the horizon, then the curve of the validation loss.

    Args:
        model: the trained model's part of a report, with ``by_horizon``.
        bootstrap: that of the bootstrap.
        losses: of validation, after each epoch of the last stage.
    """
    against = [model["against"][other] for other in (BOOTSTRAP, START) if other in model["against"]]
    if all(by["verdict"] == "better" for by in against):
        return None
    if any(by["low"] is None for by in against):
        why = "the windows are too few, or begin too close together, for an interval"
        return f"Next, try more data to compare on, as by a larger data.test_fraction: {why}."
    error, other, (low, high) = model["scores"]["mase"], bootstrap["mase"], GOOD_COVERAGE
    held = model["scores"]["coverage"]["0.8"]
    if config.evaluation.sample_count >= MIN_PATHS and not low <= held <= high and error <= other:
        why = f"the 80 % interval held {100 * held:.0f} %, but the median errs no more than the bootstrap's"
        return f"Next, try calibration alone (kronos calibrate): {why} (MASE {error:.3g}, {other:.3g})."
    ours, theirs = (np.cumsum(each["by_horizon"]["crps_scaled"]) for each in (model, bootstrap))
    changes = 100 * (ours / theirs - 1)
    if changes.min() <= -100 * MIN_GAIN < changes[-1]:
        bars = int(np.flatnonzero(changes <= -100 * MIN_GAIN)[-1]) + 1
        all_bars = f"{abs(changes[-1]):.1f} % {'worse' if changes[-1] > 0 else 'better'} over all"
        why = f"there CRPS is {-changes[bars - 1]:.1f} % better than the bootstrap's, {all_bars}"
        return f"Next, try a shorter horizon, data.pred_len {bars}: {why}."
    if not losses:
        return None
    stage, best, number = config.stages[-1], int(np.argmin(losses)) + 1, len(losses)
    lowest = f"the validation loss was lowest after epoch {best} of {number}"
    if 1 < best < number and getattr(config, stage).optimiser.schedule == "one_cycle":
        return (
            f"Next, try fewer epochs, {stage}.epochs {best}: {lowest}; the learning rate then falls earlier."
        )
    if number == 1 or losses[-1] < (1 - MIN_FALL) * min(losses[:-1]):
        return f"Next, try more epochs, {stage}.epochs {2 * number}: the validation loss was still falling."
    flat = lowest if best < number else "the validation loss hardly fell in the last epoch"
    return f"Next, try more data: {flat}, so these candles hold no more for this model to learn."
