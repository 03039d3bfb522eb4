"""The calibration of a registered model: what corrects the quantiles of jobs that ask for it."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, PositiveInt, model_validator

from kronos_client.contract.columns import ColumnName
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.forecast import ForecastJob, Sampling
from kronos_client.contract.manifest import hash_of
from kronos_client.contract.model_info import CalibrationInfo
from kronos_client.contract.worker_status import AnyWorkerStatus, ForecastWorkerStatus
from kronos_model.bars.columns import COLUMNS, PRICE_COLUMNS, FloatArray
from kronos_model.evaluation.calibration import Correction, corrected, references

SECONDS_PER_DAY = 24 * 3600
DRAWN_AS = {name: Sampling.model_fields[name].default for name in ("temperature", "top_k", "top_p")}
"""A backtest's sampling settings. A correction is valid only for forecasts sampled this way."""


class Calibration(BaseModel):
    """The field ``calibration`` of a registered model's metadata.

    Attributes:
        levels: ascending.
        weights, shifts: of each column's ``Correction``.
    """

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    method: str
    lookback: PositiveInt
    horizon: PositiveInt
    sample_count: PositiveInt
    num_windows: PositiveInt
    first: str
    last: str
    fitted_at: AwareDatetime
    levels: Annotated[tuple[float, ...], Field(min_length=2)]
    weights: dict[ColumnName, Annotated[float, Field(ge=0, le=1)]]
    shifts: dict[ColumnName, tuple[tuple[float, ...], ...]]

    @model_validator(mode="after")
    def _check_shape(self) -> Self:
        for column, shifts in self.shifts.items():
            if len(shifts) != len(self.levels) or {len(each) for each in shifts} != {self.horizon}:
                raise ValueError(f"shifts of {column} must have one value for each level and bar ahead")
        if self.weights.keys() != self.shifts.keys():
            raise ValueError("weights and shifts must be of the same columns")
        return self

    @property
    def hash(self) -> str:
        """As manifests have it."""
        return hash_of(self.model_dump_json())

    def info(self) -> CalibrationInfo:
        """As results and workers' statuses have it."""
        age_days = (datetime.now(UTC) - self.fitted_at).total_seconds() / SECONDS_PER_DAY
        known = self.model_dump(mode="json", exclude={"levels", "shifts"})
        return CalibrationInfo(**known, age_days=round(max(0.0, age_days), 2))

    def corrected(
        self, levels: tuple[float, ...], quantiles: NDArray[np.float64], past: FloatArray
    ) -> NDArray[np.float64]:
        """The quantiles of one series, (num_levels, H, 6), from the bars of its lookback, (T, 6)."""
        anchor, scale = references(past[None])
        result = quantiles.copy()
        for column, shifts in self.shifts.items():
            index = COLUMNS.index(column)
            fit = Correction(self.weights[column], np.asarray(shifts))
            of_column = anchor[:, index], scale[:, index]
            moved = corrected(levels, quantiles[:, None, :, index], self.levels, fit, *of_column)[:, 0]
            result[..., index] = moved if column in PRICE_COLUMNS else np.maximum(moved, 0)
        return result


def check_calibrated(job: ForecastJob, name: str, calibration: Calibration | None) -> Calibration:
    """The calibration of the model ``name`` for a job that asks for it.

    Raises:
        JobError: NOT_CALIBRATED if the model has none, or none for such a forecast.
    """
    if calibration is None:
        raise _no_calibration(name)
    drawn = job.sampling.model_dump()
    low, high = calibration.levels[0], calibration.levels[-1]
    num_bars, horizon, num_paths = calibration.lookback, calibration.horizon, calibration.sample_count
    is_inside = all(low <= level <= high for level in job.output.quantiles)
    needs = [
        ("lookback", job.lookback in ("auto", num_bars), f"a lookback of {num_bars} bars, or auto"),
        ("pred_len", job.horizon <= horizon, f"at most {horizon} bars ahead"),
        ("sampling.sample_count", drawn["sample_count"] >= num_paths, f"{num_paths} paths or more"),
        *((f"sampling.{key}", drawn[key] == value, f"a {key} of {value}") for key, value in DRAWN_AS.items()),
        ("output.quantiles", is_inside, f"quantiles from {low} to {high}"),
    ]
    for field, is_met, need in needs:
        if not is_met:
            raise _refusal(f"{field}: {name} is calibrated for {need}", field, calibration)
    return calibration


def check_num_bars(num_bars: Sequence[int], calibration: Calibration) -> None:
    """Refuse series that are shorter than the calibrated lookback. Raises JobError NOT_CALIBRATED."""
    for index, number in enumerate(num_bars):
        if number < calibration.lookback:
            text = f"the model is calibrated for lookbacks of {calibration.lookback} bars, not {number}"
            raise _refusal(f"{text}: send more", f"series.{index}.close", calibration)


def check_announced(model: str | None, workers: Iterable[AnyWorkerStatus]) -> None:
    """Refuse a job that asks for the calibration of a model if live workers hold it, all without one.

    A name that none of them announces may still be calibrated: the worker decides.

    Raises:
        JobError: NOT_CALIBRATED.
    """
    holders = [worker for worker in workers if isinstance(worker, ForecastWorkerStatus)]
    held = [status for worker in holders for status in worker.named(model) if status.state == "ready"]
    if held and not any(status.calibration for status in held):
        raise _no_calibration(held[0].id)


def _no_calibration(name: str) -> JobError:
    text = f"the model {name} has no calibration: run `kronos calibrate`, or do not ask for it"
    return _refusal(text, "output.calibrated")


def _refusal(message: str, field: str, calibration: Calibration | None = None) -> JobError:
    details = {} if calibration is None else {"calibration": calibration.info().model_dump()}
    return JobError(ErrorCode.NOT_CALIBRATED, message, field, details)
