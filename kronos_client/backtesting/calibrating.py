"""A calibration from a backtest's folder, and what it would have held on the latest of its windows."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kronos_client.backtesting.store import LEVELS, PARTS
from kronos_client.backtesting.window_plan import DEFAULT_WINDOWS
from kronos_client.contract.calibration import Calibration
from kronos_client.contract.columns import ColumnName
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.model_info import ModelInfo
from kronos_model.evaluation.calibration import (
    MIN_WINDOWS,
    Correction,
    corrected,
    fit_correction,
    pinball_loss,
)
from kronos_model.evaluation.naive import BOOTSTRAP, NAIVE_TITLES
from kronos_model.evaluation.report import Improvement, compared, improvement, without_steps
from kronos_model.evaluation.scores import LEVELS as SCORED

CHECKED_SHARE: Final = 1 / 3
"""Share of windows, the latest, on which a fit to the earlier ones is checked."""
ENOUGH: Final = next(n for n in count(MIN_WINDOWS) if n - round(n * CHECKED_SHARE) >= MIN_WINDOWS)
"""Windows of which the earlier ones can be fitted to."""
INTERVAL: Final = (0.1, 0.9)


@dataclass(frozen=True)
class CalibrationFit:
    """A calibration fitted to all windows of a backtest, and the model that it belongs to.

    Attributes:
        evaluation: the model's part of the report, without its scores by bar ahead.
        check: a sentence on the latest windows, calibrated by a fit to those before.
    """

    calibration: Calibration
    model: ModelInfo
    evaluation: dict[str, Any]
    check: str


@dataclass(frozen=True, eq=False)
class _Windows:
    """One column of W windows in the order of their times; arrays as those of ``fit_correction``."""

    quantiles: NDArray[np.float64]
    actual: NDArray[np.float64]
    anchor: NDArray[np.float64]
    scale: NDArray[np.float64]
    begins: NDArray[np.str_]
    groups: NDArray[np.int64]
    baseline: NDArray[np.float64]
    """The bootstrap's loss of the close; NaN in a backtest of 0.1.0."""

    def __len__(self) -> int:
        return len(self.begins)

    def part(self, windows: slice | NDArray[np.int64]) -> "_Windows":
        """Some of the windows."""
        by_window = {name: values for name, values in vars(self).items() if name != "quantiles"}
        each: dict[str, Any] = {name: values[windows] for name, values in by_window.items()}
        return _Windows(self.quantiles[:, windows], **each)

    def fit(self) -> Correction:
        return fit_correction(LEVELS, self.quantiles, self.actual, self.anchor, self.scale)


def fit_calibration(folder: Path, model: str | None = None) -> CalibrationFit:
    """Fit the calibration of a backtest's model; ``model`` chooses one of several, by its name in the report.

    Raises:
        JobError: INVALID_INPUT; the folder has no backtest, or none that can be used.
    """
    try:
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        names, asked, infos = list(report["models"]), report["asked"], report["model_info"]
        if model is None and len(names) > 1:
            text = f"the backtest has several models: choose one of {', '.join(names)} with --model"
            raise _refusal(text, "model")
        name = names[0] if model is None else model
        if name not in names:
            raise _refusal(f"the backtest has no model {name}: choose one of {', '.join(names)}", "model")
        file = folder / "forecasts.parquet"
        columns = {column: _read(file, name, column, asked["horizon"]) for column in get_args(ColumnName)}
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowInvalid) as error:
        text = f"{folder} has no backtest that can be read ({error}): run `kronos backtest` first"
        raise _refusal(text) from None
    close = columns["close"]
    if len(close) < MIN_WINDOWS:
        few, remedy = f"a calibration needs {MIN_WINDOWS} windows, not {len(close)}", "more"
        most = asked["windows"] or (DEFAULT_WINDOWS if asked["stride"] is None else math.inf)
        if all(instrument["windows"] < most for instrument in report["instruments"]):
            few += ", and the candles have no more"
            stride = "" if asked["stride"] in (None, 1) else f"a smaller stride than {asked['stride']}, "
            remedy = f"{stride}a shorter lookback than {asked['lookback']}, or more candles"
        raise _refusal(f"{few}: repeat the backtest with {remedy}")
    fits = {column: windows.fit() for column, windows in columns.items() if len(windows) >= MIN_WINDOWS}
    bars = {name: asked[name] for name in ("lookback", "horizon")}
    return CalibrationFit(
        calibration=Calibration(
            method="split_conformal",
            **bars,
            sample_count=asked["samples"],
            num_windows=len(close),
            first=close.begins[0],
            last=close.begins[-1],
            fitted_at=datetime.now(UTC).replace(microsecond=0),
            levels=LEVELS,
            weights={column: fit.weight for column, fit in fits.items()},
            shifts={column: fit.shifts.tolist() for column, fit in fits.items()},
        ),
        model=ModelInfo.model_validate(infos[name]),
        evaluation={
            **bars,
            "num_windows": report["num_windows"],
            **without_steps({"models": {name: report["models"][name]}, "naive": report["naive"]}),
        },
        check=_check({column: columns[column] for column in fits}),
    )


def _read(file: Path, model: str, column: str, horizon: int) -> _Windows:
    """The windows of a model in which the column has a scale."""
    titles = ["timestamp", *(f"{column}_{part}" for part in PARTS)]
    titles += ["group", "bootstrap_loss"] if "bootstrap_loss" in pq.read_schema(file).names else []
    table = pq.read_table(file, columns=titles, filters=[("model", "==", model)])
    begins = np.array(table["timestamp"].to_pylist()[::horizon])
    anchor, scale, actual, *quantiles = (
        table[f"{column}_{part}"].to_numpy().astype(np.float64).reshape(-1, horizon) for part in PARTS
    )
    groups, baseline = (
        table[title].to_numpy()[::horizon] if title in titles else np.full(len(begins), fill)
        for title, fill in (("group", 0), ("bootstrap_loss", np.nan))
    )
    order = np.argsort(begins, kind="stable")
    windows = _Windows(np.stack(quantiles), actual, anchor[:, 0], scale[:, 0], begins, groups, baseline)
    return windows.part(order[np.isfinite(windows.scale[order])])


def _check(columns: Mapping[ColumnName, _Windows]) -> str:
    """What the 80 % intervals held of the latest windows, before and after."""
    held = {column: _held_later(windows) for column, windows in columns.items()}
    close, num_late = held.pop("close"), round(len(columns["close"]) * CHECKED_SHARE)
    if close is None:
        return f"The windows are too few to check the calibration on the latest of them: that takes {ENOUGH}."
    by = compared(NAIVE_TITLES[BOOTSTRAP], close.against.as_dict())
    first = f"the close's quantiles are {by}. The" if np.isfinite(close.against.mean) else "the"
    others = [
        f"{100 * each.after:.0f} % of the {column}s" for column, each in held.items() if each is not None
    ]
    return (
        f"Fitted to the {len(columns['close']) - num_late} earlier windows and tried on the {num_late} later "
        f"ones, {first} 80 % interval held {100 * close.after:.0f} % of the closes, instead of "
        f"{100 * close.before:.0f} %, and was {100 * abs(close.widening - 1):.0f} % "
        f"{'wider' if close.widening >= 1 else 'narrower'}. Of the model's own quantiles it keeps "
        f"{100 * close.weight:.0f} %." + (f" It held {', '.join(others)}." if others else "")
    )


class _Held(NamedTuple):
    """Shares held by the 80 % interval before and after, the width after over that before, and the weight.

    ``against`` is the improvement of the pinball loss after over the bootstrap's.
    """

    before: float
    after: float
    widening: float
    weight: float
    against: Improvement


def _held_later(windows: _Windows) -> _Held | None:
    """What a fit to the earlier windows held of the latest; None of too few windows."""
    first = len(windows) - round(len(windows) * CHECKED_SHARE)
    if first < MIN_WINDOWS:
        return None
    late, fit = windows.part(slice(first, None)), windows.part(slice(first)).fit()
    before = late.quantiles[[LEVELS.index(level) for level in INTERVAL]]
    after = corrected(INTERVAL, before, LEVELS, fit, late.anchor, late.scale)
    held, held_after = (
        np.mean((low <= late.actual) & (late.actual <= high)) for low, high in (before, after)
    )
    own = late.quantiles[[LEVELS.index(level) for level in SCORED]]
    calibrated = corrected(SCORED, own, LEVELS, fit, late.anchor, late.scale)
    loss = pinball_loss(SCORED, calibrated, late.actual).mean(axis=(0, 2))
    by = improvement(loss / late.scale, late.baseline / late.scale, late.groups)
    width, width_after = (((high - low) / late.scale[:, None]).mean() for low, high in (before, after))
    return _Held(float(held), float(held_after), float(width_after / width) if width else 1.0, fit.weight, by)


def _refusal(message: str, field: str | None = None) -> JobError:
    return JobError(ErrorCode.INVALID_INPUT, message, field)
