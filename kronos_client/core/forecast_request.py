"""From an app's data and options to a forecast job of the contract. No pandas needed."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypedDict, Unpack

import numpy as np

from kronos_client.contract.forecast import Output, Sampling
from kronos_client.contract.job_limits import Limits
from kronos_client.contract.names import SCHEMA_VERSION, ContextPolicy, Priority
from kronos_client.core.series import CandleSource, job_series, readable
from kronos_model.bars.missing import Missing

SERIES_OPTIONS: Final = ("series_ids", "timestamps", "future_timestamps", "calendar", "timezone")
SAMPLE_COUNT: Final = 30
"""Paths for each series by default: enough for quantiles from 0.1 to 0.9."""
SAMPLING: Final = Sampling().model_dump()
OUTPUT: Final = Output().model_dump(mode="json")
"""The contract's defaults."""
LEFT_OUT_IF_NONE: Final = ("pred_len", "lookback", "model", "deadline_s")


class ForecastOptions(TypedDict, total=False):
    """Options of a forecast. Defaults are those of the contract, but for ``sample_count``: ``SAMPLE_COUNT``.

    Attributes:
        pred_len: Bars to forecast; not needed with ``future_timestamps``.
        series_ids: Names of the series; by default those of a mapping, else "0", "1", ….
        timestamps, future_timestamps: Of the only series, or a list of lists for several. By default, future
            ones follow the lookback's spacing.
        calendar: By which future timestamps are found instead: an exchange's code such as "XNYS" (needs the
            extra ``calendars``), "24/7" or "weekdays".
        lookback: The last bars of each series that the model reads. By default what its context leaves, up
            to the longest of its training; the result has the number.
        missing: What happens to bars without prices (NaN, or zero without volume). "error" refuses them,
            "drop" leaves them out, "ffill" gives them the close before, and adds bars that are not there.
        timezone: IANA zone that inferred timestamps follow.
        temperature, top_k, top_p, sample_count, seed: Sampling. By default the job's id gives the seed.
        quantiles, paths, repair: What the result holds.
        calibrated: Whether the model's calibration corrects the quantiles.
        events: Events whose chance it gives, such as "close>last at 24", "close<last-2% at end" or
            "high>=195.5 by 10" (at bar 10 or before).
        statistics: Whether it gives return, realised volatility and maximum drawdown over the paths.
        stream: Whether ``progress`` has the bars that are done so far.
        model: By default the worker's own; or one of its further models, or a registered one.
        device, allow_fallback: Where to compute, and whether on the CPU if no GPU worker is ready.
        deadline_s: Seconds from submission until the job is given up.
        context_policy: "exact", or "rolling" for an approximation that stays fast beyond the context.
    """

    pred_len: int | None
    lookback: int | Literal["auto"] | None
    series_ids: Sequence[str] | None
    timestamps: Iterable[Any] | None
    future_timestamps: Iterable[Any] | None
    missing: Missing
    calendar: str | None
    timezone: str | None
    temperature: float
    top_k: int
    top_p: float
    sample_count: int
    seed: int | None
    quantiles: Sequence[float]
    paths: bool
    repair: bool
    calibrated: bool
    events: Sequence[str]
    statistics: bool
    stream: bool
    model: str | None
    device: str
    allow_fallback: bool
    deadline_s: float | None
    priority: Priority
    context_policy: ContextPolicy


class SubmitOptions(ForecastOptions, total=False):
    """Options of one job; ``ForecastClient.submit`` describes its own two."""

    job_id: str | None
    retry_for_s: float


def forecast_payload(
    candles: CandleSource, *, limits: Limits | None = None, **options: Unpack[ForecastOptions]
) -> dict[str, Any]:
    """Make a job as JSON has it. The contract checks its values later.

    Args:
        limits: To which longer series are cut, and the default of ``sample_count`` is lowered.

    Raises:
        JobError: Candles, timestamps or ids cannot be read.
        TypeError: An option does not exist.
    """
    check_options(options, ForecastOptions)
    given: dict[str, Any] = {**options}
    own = {name: given.pop(name, None) for name in SERIES_OPTIONS}
    limits = limits or Limits()
    series = job_series(candles, max_bars=limits.max_bars, missing=given.get("missing"), **own)
    if "quantiles" in given:
        with readable("quantiles", "quantiles"):
            given["quantiles"] = [float(level) for level in given["quantiles"]]
    given = plain(**given)
    sampling = SAMPLING | {"sample_count": default_sample_count(limits, len(series))}
    return {
        "schema_version": SCHEMA_VERSION,
        "series": series,
        "sampling": {name: given.pop(name, default) for name, default in sampling.items()},
        "output": {name: given.pop(name, default) for name, default in OUTPUT.items()},
        "device": "auto",
        "allow_fallback": True,
        "priority": "normal",
        "context_policy": "exact",
    } | {name: value for name, value in given.items() if value is not None or name not in LEFT_OUT_IF_NONE}


def default_sample_count(limits: Limits, num_series: int = 1) -> int:
    """``SAMPLE_COUNT``, or fewer paths where the limits of a job with so many series allow fewer."""
    return min(SAMPLE_COUNT, limits.max_sample_count, max(1, limits.max_paths // max(1, num_series)))


def check_options(options: Mapping[str, object], kind: type) -> None:
    """Raises TypeError for an option that ``kind``, a TypedDict, does not have."""
    if unknown := options.keys() - kind.__annotations__.keys():
        known = ", ".join(sorted(kind.__annotations__))
        raise TypeError(f"unknown option {', '.join(sorted(unknown))}: {kind.__name__} has {known}")


def plain(**values: Any) -> dict[str, Any]:
    """Convert NumPy's scalars to Python's, which JSON takes."""
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}
