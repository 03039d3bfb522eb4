"""Training, validation and test: consecutive parts of time, and the windows in each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kronos_model.bars.instrument import Instrument
from kronos_model.bars.timestamps import parse_timestamps, write_times
from kronos_model.errors import FinetuningConfigError, TimestampError, TrainingDataError
from kronos_model.evaluation.window_arrays import Windows
from kronos_model.finetuning.config import DataConfig

PARTS: Final = ("train", "validation", "test")


@dataclass(frozen=True, eq=False)
class Split:
    """The windows of each part; no bar is in windows of two parts.

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
        """Cuts, windows and bars by part, JSON-compatible."""
        return {
            "cuts": dict(self.cuts),
            "num_windows": {part: len(getattr(self, part)) for part in PARTS},
            "num_bars": dict(self.num_bars),
            "num_left_out": self.num_left_out,
        }


def split_windows(instruments: Sequence[Instrument], config: DataConfig) -> Split:
    """Cut all instruments at the same two instants, and find the windows wholly inside one part.

    The cuts are quantiles of all instruments' bars, or times from the config. After a cut each instrument's
    first ``gap_bars`` bars are left out, to separate the parts.

    Raises:
        TrainingDataError: no window to train on, or none in the validation part. The test part may have none.
        FinetuningConfigError: ``validation_from`` or ``test_from`` is no time, is not written like the data's
            times, or the two are in the wrong order.
    """
    cuts = _given_cuts(instruments, config) or _quantile_cuts(instruments, config)
    found = [_ranges(each.instants, cuts, config.gap_bars) for each in instruments]
    ranges = np.array(found, dtype=np.int64).reshape(-1, len(PARTS), 2)  # (I, 3, 2)
    lengths = ranges[..., 1] - ranges[..., 0]  # (I, 3)
    parts = {part: _windows(ranges[:, index], config) for index, part in enumerate(PARTS)}
    is_aware = bool(instruments) and instruments[0].is_aware
    texts = dict(zip(PARTS[1:], (_write_cut(cut, is_aware) for cut in cuts), strict=True))
    longest = dict(zip(PARTS, lengths.max(axis=0, initial=0).tolist(), strict=True))
    if not len(parts["train"]):
        until = f" before {texts['validation'] or texts['test']}" if cuts[1] is not None else ""
        raise TrainingDataError(
            f"no window to train on: an instrument has at most {longest['train']} bars{until}, and a window "
            f"needs {_needed(config)}: give more bars, or lower lookback and pred_len",
            field="data.path",
        )
    if cuts[0] is not None and not len(parts["validation"]):
        raise TrainingDataError(
            f"no window to validate on: an instrument has at most {longest['validation']} bars from "
            f"{texts['validation']} to {texts['test'] or 'the end'}, less a gap of {config.gap_bars}, and a "
            f"window needs {_needed(config)}: give more bars, or make the part larger or the gap smaller",
            field="data.validation_fraction" if config.validation_from is None else "data.validation_from",
        )
    num_bars = dict(zip(PARTS, lengths.sum(axis=0).tolist(), strict=True))
    num_left_out = sum(map(len, instruments)) - sum(num_bars.values())
    return Split(**parts, cuts=texts, num_bars=num_bars, num_left_out=num_left_out)


Cut = np.datetime64 | None


def _quantile_cuts(instruments: Sequence[Instrument], config: DataConfig) -> tuple[Cut, Cut]:
    pooled = np.sort(
        np.concatenate([each.instants for each in instruments] or [np.array([], "datetime64[s]")])
    )
    if not len(pooled):
        return None, None
    before_test = min(round(len(pooled) * (1 - config.test_fraction)), len(pooled) - 1)
    before_validation = round(len(pooled) * (1 - config.test_fraction - config.validation_fraction))
    before_validation = min(before_validation, len(pooled) - 1)
    return (
        pooled[before_validation] if config.validation_fraction else None,
        pooled[before_test] if config.test_fraction else None,
    )


def _given_cuts(instruments: Sequence[Instrument], config: DataConfig) -> tuple[Cut, Cut] | None:
    if config.validation_from is None or config.test_from is None:
        return None
    cuts = tuple(
        _read_cut(instruments, text, f"data.{field}")
        for field, text in (("validation_from", config.validation_from), ("test_from", config.test_from))
    )
    if cuts[1] <= cuts[0]:
        raise FinetuningConfigError(
            f"test_from, {config.test_from}, is not after validation_from, {config.validation_from}: "
            "make it later",
            field="data.test_from",
        )
    return cuts[0], cuts[1]


def _read_cut(instruments: Sequence[Instrument], text: str, field: str) -> np.datetime64:
    try:
        stamp = parse_timestamps([text], field=field)
    except TimestampError as error:
        raise FinetuningConfigError(error.message, field=field) from None
    if instruments and stamp.is_aware != instruments[0].is_aware:
        has = "has an offset, but the data's times have none"
        has_not = "has no offset, but the data's times have one"
        raise FinetuningConfigError(
            f"{field}: {text!r} {has if stamp.is_aware else has_not}: write it like the data", field=field
        )
    cut: np.datetime64 = stamp.instants[0]
    return cut


def _ranges(
    instants: NDArray[np.datetime64], cuts: tuple[Cut, Cut], gap_bars: int
) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    """First bar and end of train, validation and test in one instrument."""
    num_bars = len(instants)
    test = num_bars if cuts[1] is None else int(np.searchsorted(instants, cuts[1]))
    validation = test if cuts[0] is None else int(np.searchsorted(instants, cuts[0]))
    return (
        (0, validation),
        (min(validation + gap_bars, test), test),
        (min(test + gap_bars, num_bars), num_bars),
    )


def _windows(ranges: NDArray[np.int64], config: DataConfig) -> Windows:
    """The windows in each instrument's range (I, 2), ``stride`` bars apart from its beginning."""
    starts = [np.arange(first, end - config.window + 1, config.stride) for first, end in ranges.tolist()]
    counts = [len(each) for each in starts]
    return Windows(
        np.repeat(np.arange(len(starts), dtype=np.int32), counts),
        np.concatenate([*starts, np.array([], dtype=np.int64)]).astype(np.int64, copy=False),
    )


def _needed(config: DataConfig) -> str:
    return f"lookback {config.lookback} + pred_len {config.pred_len} = {config.window}"


def _write_cut(cut: Cut, is_aware: bool) -> str | None:
    if cut is None:
        return None
    instant = np.array([cut])
    return write_times(instant, instant, is_aware)[0]
