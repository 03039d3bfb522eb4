"""A calibration from a backtest's folder, and what it would have held on the latest of its windows."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kronos_client.contract.calibration import Calibration
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.model_info import ModelInfo
from kronos_model.evaluation.calibration import MIN_WINDOWS, corrected, fit_corrections
from kronos_model.evaluation.report import without_steps

QUANTILE: Final = "close_q"
CHECKED_SHARE: Final = 1 / 3
"""Of the windows, the latest: a fit to the others is checked on them."""
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
    """W windows in the order of their times: quantiles (num_levels, W, H), actual (W, H), scale (W,)."""

    levels: tuple[float, ...]
    quantiles: NDArray[np.float64]
    actual: NDArray[np.float64]
    scale: NDArray[np.float64]
    begins: list[str]

    def part(self, windows: slice) -> "_Windows":
        each = self.quantiles[:, windows], self.actual[windows], self.scale[windows], self.begins[windows]
        return _Windows(self.levels, *each)

    def fit(self) -> NDArray[np.float64]:
        return fit_corrections(self.levels, self.quantiles, self.actual, self.scale)


def fit_calibration(folder: Path, model: str | None = None) -> CalibrationFit:
    """Fit the calibration of a backtest's model; ``model`` chooses one of several, by its name in the report.

    Raises:
        JobError: INVALID_INPUT; the folder has no backtest, or none that can be used.
    """
    try:
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        names, asked, infos = list(report["models"]), report["asked"], report["model_info"]
        table = pq.read_table(folder / "forecasts.parquet")
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowInvalid) as error:
        raise _refusal(
            f"{folder} has no backtest that can be read ({error}): run `kronos backtest` first"
        ) from None
    if model is None and len(names) > 1:
        raise _refusal(f"the backtest has several models: choose one of {', '.join(names)}", "model")
    name = names[0] if model is None else model
    if name not in names:
        raise _refusal(f"the backtest has no model {name}: choose one of {', '.join(names)}", "model")
    windows = _read(table, name, asked["horizon"])
    if len(windows.begins) < MIN_WINDOWS:
        raise _refusal(f"a calibration needs {MIN_WINDOWS} windows, not {len(windows.begins)}: ask for more")
    return CalibrationFit(
        calibration=Calibration(
            method="split_conformal",
            lookback=asked["lookback"],
            horizon=asked["horizon"],
            sample_count=asked["samples"],
            num_windows=len(windows.begins),
            first=windows.begins[0],
            last=windows.begins[-1],
            fitted_at=datetime.now(UTC).replace(microsecond=0),
            levels=windows.levels,
            corrections=windows.fit().tolist(),
        ),
        model=ModelInfo.model_validate(infos[name]),
        evaluation={
            "lookback": asked["lookback"],
            "horizon": asked["horizon"],
            "num_windows": report["num_windows"],
            **without_steps({"models": {name: report["models"][name]}, "naive": report["naive"]}),
        },
        check=_check(windows),
    )


def _read(table: pa.Table, name: str, horizon: int) -> _Windows:
    """The windows of a model whose lookback's close changes."""
    table = table.filter(pc.equal(table["model"], name))
    scale = table["scale"].to_numpy().reshape(-1, horizon)[:, 0]
    begins = np.array(table["timestamp"].to_pylist()[::horizon])
    titles = [title for title in table.column_names if title.startswith(QUANTILE)]
    order = np.argsort(begins, kind="stable")
    order = order[np.isfinite(scale[order])]

    def values(title: str) -> NDArray[np.float64]:
        return np.asarray(table[title].to_numpy().reshape(-1, horizon)[order])

    return _Windows(
        tuple(float(title.removeprefix(QUANTILE)) for title in titles),
        np.stack([values(title) for title in titles]),
        values("actual"),
        scale[order],
        begins[order].tolist(),
    )


def _check(windows: _Windows) -> str:
    """What the 80 % interval held of the latest windows' closes, before and after."""
    first = len(windows.begins) - round(len(windows.begins) * CHECKED_SHARE)
    if first < MIN_WINDOWS:
        return "The windows are too few to check the calibration on the latest of them."
    late = windows.part(slice(first, None))
    corrections = windows.part(slice(first)).fit()
    before = late.quantiles[[late.levels.index(level) for level in INTERVAL]]
    after = corrected(INTERVAL, before, late.levels, corrections, late.scale)
    (held, width), (held_after, width_after) = (
        (((low <= late.actual) & (late.actual <= high)).mean(), ((high - low) / late.scale[:, None]).mean())
        for low, high in (before, after)
    )
    wider = "wider" if width_after >= width else "narrower"
    return (
        f"Fitted to the {first} earlier windows, the 80 % interval held {100 * held_after:.0f} % of the "
        f"closes of the {len(late.begins)} later ones, instead of {100 * held:.0f} %, and was "
        f"{100 * abs(width_after / width - 1):.0f} % {wider}."
    )


def _refusal(message: str, field: str | None = None) -> JobError:
    return JobError(ErrorCode.INVALID_INPUT, message, field)
