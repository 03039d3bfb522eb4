"""From an app's data and options to a forecast job of the contract. No pandas needed."""

from collections.abc import Mapping
from typing import Any, Final, Unpack

import numpy as np

from kronos_client.contract.forecast import ForecastJob
from kronos_client.contract.job_limits import Limits
from kronos_client.contract.names import SCHEMA_VERSION
from kronos_client.core.options import SAMPLE_COUNT, ForecastOptions, check_options
from kronos_client.core.series import CandleSource, job_series, readable

SERIES_OPTIONS: Final = ("series_ids", "timestamps", "future_timestamps", "calendar", "timezone")
JOB_DEFAULTS: Final = {
    name: value
    for name, value in ForecastJob.model_construct(series=()).model_dump(mode="json").items()
    if value is not None and name not in ("schema_version", "series")
}
PARTS: Final[dict[str, dict[str, Any]]] = {name: JOB_DEFAULTS[name] for name in ("sampling", "output")}
"""The contract's defaults."""
LEFT_OUT_IF_NONE: Final = ("pred_len", "lookback", "model", "deadline_s")
FEWER_PATHS: Final = (
    f"%d paths are drawn for each series, not {SAMPLE_COUNT}: %s allows no more; "
    "send fewer series in one job, or choose sample_count."
)


def forecast_payload(
    candles: CandleSource, *, limits: Limits | None = None, **options: Unpack[ForecastOptions]
) -> dict[str, Any]:
    """Make a job of plain JSON values. The contract checks them later.

    Args:
        limits: Longer series are cut to them, and the default of ``sample_count`` is lowered to them.

    Raises:
        JobError: Candles, timestamps or ids cannot be read.
        TypeError: An option does not exist.
    """
    check_options(options, ForecastOptions.__annotations__)
    given: dict[str, Any] = {**options}
    own = {name: given.pop(name, None) for name in SERIES_OPTIONS}
    limits = limits or Limits()
    series = job_series(candles, max_bars=limits.max_bars, missing=given.get("missing"), **own)
    if "quantiles" in given:
        with readable("quantiles", "quantiles"):
            given["quantiles"] = [float(level) for level in np.atleast_1d(given["quantiles"])]
    if isinstance(given.get("events"), str):
        given["events"] = [given["events"]]
    given = plain(**given)
    if "sample_count" not in given:
        given["sample_count"] = default_sample_count(limits, len(series))
    job = {"schema_version": SCHEMA_VERSION, "series": series}
    job |= {part: {name: given.pop(name) for name in PARTS[part] if name in given} for part in PARTS}
    job |= {name: value for name, value in given.items() if value is not None or name not in LEFT_OUT_IF_NONE}
    return with_defaults(job)


def without_defaults(job: Mapping[str, Any], defaults: Mapping[str, Any] = JOB_DEFAULTS) -> dict[str, Any]:
    """A checked job as it is sent: an older worker gets no newer field that has its default."""
    return {
        name: without_defaults(value, defaults[name]) if name in PARTS else value
        for name, value in job.items()
        if value != defaults.get(name)
    }


def with_defaults(job: Mapping[str, Any]) -> dict[str, Any]:
    """The reverse of ``without_defaults``."""
    return {**JOB_DEFAULTS, **job} | {part: {**PARTS[part], **job.get(part, {})} for part in PARTS}


def _default_sample_count(limits: Limits, num_series: int) -> tuple[int, str]:
    allowed = max(1, limits.max_paths // max(1, num_series))
    most = limits.max_sample_count, "KRONOS_MAX_SAMPLE_COUNT"
    return min((SAMPLE_COUNT, ""), most, (allowed, "KRONOS_MAX_PATHS"))


def default_sample_count(limits: Limits, num_series: int = 1) -> int:
    """``SAMPLE_COUNT``, or fewer paths where limits allow a job of so many series fewer."""
    return _default_sample_count(limits, num_series)[0]


def fewer_paths(options: Mapping[str, Any], limits: Limits, num_series: int = 1) -> list[str]:
    """The warning, for the job's result, that the default of its paths was lowered."""
    number, setting = _default_sample_count(limits, num_series)
    return [FEWER_PATHS % (number, setting)] if setting and "sample_count" not in options else []


def plain(**values: Any) -> dict[str, Any]:
    """Convert NumPy's scalars and tuples to what JSON has."""
    return {
        name: value.item() if isinstance(value, np.generic) else [*value] if type(value) is tuple else value
        for name, value in values.items()
    }
