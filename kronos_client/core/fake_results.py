"""Results for apps' tests, made up from the job and its seed. No model runs."""

from collections import Counter
from typing import Any

import numpy as np

from kronos_client.contract.backtest import BacktestJob, BacktestResult, BacktestTimings
from kronos_client.contract.finetune import FinetunedModel, FinetuneJob, FinetuneResult, FinetuneTimings
from kronos_client.contract.forecast import ForecastJob
from kronos_client.contract.jobs import Limits, PreparedSeries, prepare
from kronos_client.contract.model_info import CalibrationInfo, ModelInfo, ResultModel
from kronos_client.contract.path_results import sampling_warnings
from kronos_client.contract.results import ForecastResult, Timings, series_result
from kronos_client.contract.schemas import example
from kronos_client.redis.queues import is_gpu_queue
from kronos_client.redis.routing import why_elsewhere
from kronos_model.bars.columns import CLOSE, VOLUME
from kronos_model.forecast import Forecast

STAND_IN: str = "stand-in"
"""The model's id in results, so that nobody takes them for forecasts."""

MAX_CONTEXT = 512
"""Bars that the fake's model can see, as with most models."""

SPREAD = 0.01
"""The standard deviation of a bar's return."""


def _forecast(job: ForecastJob, job_id: str, limits: Limits, queue: str) -> ForecastResult:
    """A random walk from the last close; the same for the same job and seed."""
    device = "cuda:0" if is_gpu_queue(queue) else "cpu"
    device_warning = why_elsewhere(job.device, device, None, allow_fallback=job.allow_fallback)
    num_bars = job.num_bars_read(None, MAX_CONTEXT)
    series = [one.last(num_bars) for one in prepare(job, job_id, limits)]
    warnings = sampling_warnings(job)
    calibration = CalibrationInfo(  # nothing was corrected: the random walk is calibrated
        method=STAND_IN, lookback=num_bars, horizon=job.horizon, sample_count=job.sampling.sample_count,
        num_windows=1, weights={}, first="", last="", fitted_at="", age_days=0.0,
    )  # fmt: skip
    return ForecastResult(
        series=tuple(series_result(one, _walk(one, job), job.output) for one in series),
        model=ModelInfo(
            id=job.model or STAND_IN, revision=None, tokenizer_id=STAND_IN, tokenizer_revision=None
        ),
        calibration=calibration if job.output.calibrated else None,
        device=device,
        device_warning=device_warning,
        engine="torch",
        queue=queue,
        worker=STAND_IN,
        timings_ms=Timings(queued=0.0, prefill=0.0, decode=0.0, total=0.0),
        warnings=tuple(warnings if device_warning is None else [device_warning, *warnings]),
    )


def _walk(series: PreparedSeries, job: ForecastJob) -> Forecast:
    rng = np.random.default_rng(series.seed)
    last = float(series.bars[-1, CLOSE])
    steps = SPREAD * rng.standard_normal((job.sampling.sample_count, job.horizon))
    close = last * np.exp(np.cumsum(steps, axis=1))  # (S, H)
    open_ = np.concatenate([np.full((len(close), 1), last), close[:, :-1]], axis=1)
    body = np.stack([open_, close])
    high, low = body.max(axis=0) * (1 + SPREAD), body.min(axis=0) * (1 - SPREAD)
    volume = np.full(close.shape, series.bars[:, VOLUME].mean(dtype=np.float64))
    bars = np.stack([open_, high, low, close, volume, volume * close], axis=-1)  # (S, H, 6), as COLUMNS
    return Forecast(bars.astype(np.float32), series.seed)


def fake_result(
    job: ForecastJob | FinetuneJob | BacktestJob,
    job_id: str,
    limits: Limits,
    queue: str,
    num_finetuned: Counter[str],
) -> ResultModel:
    """A result of the right form. ``num_finetuned`` counts the versions of each model's name.

    Raises:
        JobError: As a worker does, if the job's series cannot be used.
    """
    if isinstance(job, ForecastJob):
        return _forecast(job, job_id, limits, queue)
    common: dict[str, Any] = {"queue": queue, "worker": STAND_IN, "num_attempts": 1, "resumed": False}
    if isinstance(job, BacktestJob):  # the example's report, with its first model for each of the job's
        report = example("backtest-result")["report"]
        verdict = ["Nothing was forecast: this report is made up."]
        model = next(iter(report["models"].values())) | {"verdict": verdict}
        report |= {"models": dict.fromkeys((name or STAND_IN for name in job.models), model)}
        return BacktestResult(report=report, timings_ms=BacktestTimings(queued=0.0, total=0.0), **common)
    num_finetuned[job.name] += 1
    name, version = job.name, num_finetuned[job.name]
    return FinetuneResult(
        model=FinetunedModel(name=name, version=version, id=f"{name}@{version}"),
        parent={"model": STAND_IN, "revision": None, "tokenizer": STAND_IN, "tokenizer_revision": None},
        metrics={},
        verdict=("Nothing was trained: this result is made up.",),
        evaluation=None,
        data={},
        device="cuda:0" if is_gpu_queue(queue) else "cpu",
        timings_ms=FinetuneTimings(queued=0.0, training=0.0, total=0.0),
        **common,
    )
