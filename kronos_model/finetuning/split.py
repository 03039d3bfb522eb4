"""Cutting the candles of a run into training, validation and test. No torch, no pandas."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kronos_model.bars.columns import Instrument
from kronos_model.bars.timestamps import parse_timestamps, write_times
from kronos_model.errors import FinetuningConfigError, TimestampError, TrainingDataError
from kronos_model.evaluation.windows import Windows
from kronos_model.finetuning.config_parts import DataConfig

PARTS: Final = ("train", "validation", "test")


@dataclass(frozen=True, eq=False)
class Split:
    """The windows of each part, by their bars after the lookback; the parts are consecutive in time.

    Attributes:
        cuts: the times at which validation and test begin, the same for all instruments; None for a missing
            part.
        num_bars: bars of each part, without those left out after its cut.
        num_left_out: bars left out after the cuts.
    """

    train: Windows
    validation: Windows
    test: Windows
    cuts: Mapping[str, str | None]
    num_bars: Mapping[str, int]
    num_left_out: int

    def as_dict(self) -> dict[str, Any]:
        return {
            "cuts": dict(self.cuts),
            "num_windows": {part: len(getattr(self, part)) for part in PARTS},
            "num_bars": dict(self.num_bars),
            "num_left_out": self.num_left_out,
        }


def split_windows(instruments: Sequence[Instrument], config: DataConfig) -> Split:
    """Cut all instruments at the same two instants, and find the windows of each part.

    A window belongs to the part that has all its bars after the lookback. The lookback may reach back into
    the parts before, as it does in a forecast of the part's first bars. The cuts are quantiles of all
    instruments' bars, or times from the config. The ``gap`` after a cut is left out of each instrument.

    Raises:
        TrainingDataError: no window to train on, or none in the validation part. The test part may have none.
        FinetuningConfigError: ``validation_from`` or ``test_from`` is no time, is not written like the data's
            times, or the two are in the wrong order.
    """
    needed = f"a window needs lookback {config.lookbacks.max} + pred_len {config.pred_len} = {config.window}"
    if not any(map(len, instruments)):
        raise TrainingDataError(
            f"no window to train on: an instrument has at most 0 bars, and {needed}: give more bars",
            field="data.path",
        )
    cuts = _given_cuts(instruments, config) or _quantile_cuts(instruments, config)
    ranges = np.array([_ranges(each.instants, cuts, config.gap) for each in instruments])  # (I, 3, 2)
    lengths = ranges[..., 1] - ranges[..., 0]  # (I, 3)
    train, validation, test = (_windows(ranges[:, index], config) for index in range(len(PARTS)))
    validation_from, test_from = (_write_cut(cut, instruments[0].is_aware) for cut in cuts)
    longest = lengths.max(axis=0)
    if not len(train):
        raise TrainingDataError(
            f"no window to train on: an instrument has at most {longest[0]} bars before {validation_from}, "
            f"and {needed}: give more bars, or lower lookback and pred_len",
            field="data.path",
        )
    if not len(validation):
        raise TrainingDataError(
            f"no window to validate on: an instrument has at most {longest[1]} bars from {validation_from} "
            f"to {test_from or 'the end'}, less a gap of {config.gap}, and needs {config.pred_len} there and "
            f"{config.lookbacks.max} before: give more bars, make the part larger, or lower pred_len",
            field="data.validation_fraction" if config.validation_from is None else "data.validation_from",
        )
    return Split(
        train,
        validation,
        test,
        cuts={"validation": validation_from, "test": test_from},
        num_bars=dict(zip(PARTS, lengths.sum(axis=0).tolist(), strict=True)),
        num_left_out=sum(map(len, instruments)) - int(lengths.sum()),
    )


Cuts = tuple[np.datetime64, np.datetime64 | None]
"""The first instants of validation and test; None if there is no test part."""


def _quantile_cuts(instruments: Sequence[Instrument], config: DataConfig) -> Cuts:
    pooled = np.sort(np.concatenate([each.instants for each in instruments]))

    def cut(share_before: float) -> np.datetime64:
        instant: np.datetime64 = pooled[min(round(len(pooled) * share_before), len(pooled) - 1)]
        return instant

    before_test = 1 - config.test_fraction
    return cut(before_test - config.validation_fraction), cut(before_test) if config.test_fraction else None


def _given_cuts(instruments: Sequence[Instrument], config: DataConfig) -> Cuts | None:
    if config.validation_from is None or config.test_from is None:
        return None
    validation = _read_cut(instruments[0], config.validation_from, "data.validation_from")
    test = _read_cut(instruments[0], config.test_from, "data.test_from")
    if test <= validation:
        raise FinetuningConfigError(
            f"test_from, {config.test_from}, is not after validation_from, {config.validation_from}: "
            "make it later",
            field="data.test_from",
        )
    return validation, test


def _read_cut(instrument: Instrument, text: str, field: str) -> np.datetime64:
    try:
        stamp = parse_timestamps([text], field=field)
    except TimestampError as error:
        raise FinetuningConfigError(error.message, field=field) from None
    if stamp.is_aware != instrument.is_aware:
        has = "has an offset, but the data's times have none"
        has_not = "has no offset, but the data's times have one"
        raise FinetuningConfigError(
            f"{field}: {text!r} {has if stamp.is_aware else has_not}: write it like the data", field=field
        )
    cut: np.datetime64 = stamp.instants[0]
    return cut


def _ranges(instants: NDArray[np.datetime64], cuts: Cuts, gap: int) -> list[tuple[int, int]]:
    """First bar and end of train, validation and test in one instrument."""
    num_bars = len(instants)
    test = num_bars if cuts[1] is None else int(np.searchsorted(instants, cuts[1]))
    validation = int(np.searchsorted(instants[:test], cuts[0]))
    after_gaps = min(validation + gap, test), min(test + gap, num_bars)
    return [(0, validation), (after_gaps[0], test), (after_gaps[1], num_bars)]


def _windows(ranges: NDArray[np.int64], config: DataConfig) -> Windows:
    """The windows of each instrument's range (I, 2), ``stride`` bars apart from its beginning."""
    starts = [
        np.arange(max(0, first - config.lookbacks.max), end - config.window + 1, config.stride)
        for first, end in ranges.tolist()
    ]
    counts = [len(each) for each in starts]
    return Windows(np.repeat(np.arange(len(starts), dtype=np.int32), counts), np.concatenate(starts))


def _write_cut(cut: np.datetime64 | None, is_aware: bool) -> str | None:
    if cut is None:
        return None
    instant = np.array([cut])
    return write_times(instant, instant, is_aware)[0]
