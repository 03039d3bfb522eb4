"""From what apps hold and ask for to a forecast job of the contract. No pandas needed."""

from collections.abc import Iterable, Sequence
from typing import Any, TypedDict

import numpy as np

from kronos_client.contract.names import SCHEMA_VERSION, ContextPolicy, Priority
from kronos_client.core.series import CandleSource, job_series


class ForecastOptions(TypedDict, total=False):
    """What ``forecast_payload`` takes beside the candles, which says what each means."""

    pred_len: int | None
    series_ids: Sequence[str] | None
    timestamps: Iterable[Any] | None
    future_timestamps: Iterable[Any] | None
    timezone: str | None
    temperature: float
    top_k: int
    top_p: float
    sample_count: int
    seed: int | None
    quantiles: Sequence[float]
    paths: bool
    repair: bool
    model: str | None
    device: str
    allow_fallback: bool
    deadline_s: float | None
    priority: Priority
    context_policy: ContextPolicy


def forecast_payload(
    candles: CandleSource | Sequence[CandleSource],
    *,
    pred_len: int | None = None,
    series_ids: Sequence[str] | None = None,
    timestamps: Iterable[Any] | None = None,
    future_timestamps: Iterable[Any] | None = None,
    timezone: str | None = None,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 0.9,
    sample_count: int = 1,
    seed: int | None = None,
    quantiles: Sequence[float] = (0.1, 0.5, 0.9),
    paths: bool = False,
    repair: bool = True,
    model: str | None = None,
    device: str = "auto",
    allow_fallback: bool = True,
    deadline_s: float | None = None,
    priority: Priority = "normal",
    context_policy: ContextPolicy = "exact",
) -> dict[str, Any]:
    """A job as JSON has it; whether it makes sense is for the contract.

    Args:
        candles: a DataFrame of pandas or polars, a mapping of columns, or a list of records, each a mapping;
            or a list of these for several series.
        pred_len: bars to forecast; may be left out where ``future_timestamps`` says it.
        series_ids: names of the series; "0", "1", … where left out.
        timestamps, future_timestamps: of the only series, or a list of lists for several. Future ones
            that are left out are inferred from the lookback's spacing.
        timezone: IANA zone that inferred timestamps follow.
        temperature, top_k, top_p, sample_count, seed: sampling; without a seed it follows from the id.
        quantiles, paths, repair: what comes back.
        model: the worker's own where left out, one of its further models, or a registered one.
        device, allow_fallback: which pool, and whether the CPU will do where it has no GPU worker.
        deadline_s: seconds from submission after which the job is given up.
        context_policy: "exact", or "rolling" for an approximation that stays fast beyond the context.

    Raises JobError where candles, timestamps or ids cannot be read.
    """
    payload: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "series": job_series(candles, series_ids, timestamps, future_timestamps, timezone),
        "sampling": plain(
            temperature=temperature, top_k=top_k, top_p=top_p, sample_count=sample_count, seed=seed
        ),
        "output": {"quantiles": [float(level) for level in quantiles], "paths": paths, "repair": repair},
        "device": device,
        "allow_fallback": allow_fallback,
        "priority": priority,
        "context_policy": context_policy,
    }
    optional = plain(pred_len=pred_len, model=model, deadline_s=deadline_s)
    return payload | {name: value for name, value in optional.items() if value is not None}


def plain(**values: Any) -> dict[str, Any]:
    """NumPy's scalars as Python's, which JSON takes."""
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}
