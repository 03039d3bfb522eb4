"""Computes a forecast job on a process's models. No Celery, no Redis."""

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from kronos_client.contract.calibration import Calibration, check_num_bars
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.forecast import Output
from kronos_client.contract.jobs import ForecastJob, PreparedSeries, prepare
from kronos_client.contract.limits import check_job
from kronos_client.contract.path_results import sampling_warnings
from kronos_client.contract.results import (
    ForecastProgress,
    ForecastResult,
    SeriesForecast,
    Timings,
    series_result,
)
from kronos_client.redis.job_store import Receipt
from kronos_client.redis.routing import why_elsewhere
from kronos_model.bars.columns import time_features, to_bars
from kronos_model.engine.generation import Generation, Priority, SamplingParams, SeriesRequest
from kronos_model.errors import KronosError
from kronos_model.forecast import Forecast
from worker.inference.engine_thread import EngineDied, EngineThread
from worker.inference.host import Host
from worker.inference.job_run import JobRun
from worker.inference.model_cache import CacheEntry
from worker.inference.model_loader import LoadedModel

log = logging.getLogger(__name__)

CHECK_INTERVAL_S: Final = 1.0


class DiedInEngine(EngineDied):
    """The engines' thread died with the job inside an engine: the job may be the cause."""


class JobContext(Protocol):
    """The task that waits for a computation. Both methods are called about once a second, on its thread."""

    def is_cancelled(self) -> bool:
        """Whether to cancel the job. May raise an error to end the wait."""

    def report_progress(self, progress: ForecastProgress) -> None:
        """Report the job's progress."""


def compute(
    host: Host,
    job_id: str,
    job: ForecastJob,
    receipt: Receipt,
    queue: str,
    context: JobContext,
    priority: Priority = "normal",
) -> dict[str, Any]:
    """Compute the result, as JSON, of a job from ``read_job``. ``receipt`` is as of now.

    ``priority`` is that of the message.

    Raises:
        JobError: The job ends with this error.
        EngineDied: Another process must compute the job; DiedInEngine if the job may be the cause.
    """
    started = time.monotonic()
    given = (job.device, str(host.device), host.device_warning)
    device_warning = why_elsewhere(*given, allow_fallback=job.allow_fallback)
    model = host.models.find(job.model)
    limits = host.limits_of(model)
    check_job(job, limits)
    calibration = host.models.calibration_for(job, model)
    series = prepare(job, job_id, limits)
    if calibration is not None:
        check_num_bars([len(one.wall) for one in series], calibration)
    waited_s = receipt.waited_s(job.submitted_at)
    remaining_s = None if job.deadline_s is None else job.deadline_s - waited_s
    if remaining_s is not None and remaining_s <= 0:
        late = f"the job waited {waited_s:.1f} s, longer than its deadline of {job.deadline_s} s"
        raise JobError(ErrorCode.DEADLINE, f"{late}; allow more time or add workers", "deadline_s")
    if receipt.is_cancelled:
        raise _cancelled_before_start()

    deadline = None if remaining_s is None else time.monotonic() + remaining_s
    loading_started = time.monotonic()
    with host.models.use(model) as entry:
        served = wait_for_model(host.engine_thread, entry, deadline, context)
        loading_s = time.monotonic() - loading_started
        num_bars = job.num_bars_read(served.lookback, served.max_context, served.min_lookback)
        if calibration is not None:
            num_bars = calibration.lookback
        trained = served.lookback, served.min_lookback
        series = tuple(with_lookback_warning(one.last(num_bars), *trained) for one in series)
        requests = [replace(_request(one, job, deadline), priority=priority, job=job_id) for one in series]
        run = host.engine_thread.submit(job_id, requests, served.hosted)
        early = EarlyBars(series, job.output, calibration) if job.output.stream else None
        generations = wait_for_run(host.engine_thread, run, context, early)
    total_s = time.monotonic() - started
    warnings = sampling_warnings(job)
    result = ForecastResult(
        series=tuple(
            series_result(one, Forecast(generation.paths, one.seed), job.output, calibration)
            for one, generation in zip(series, generations, strict=True)
        ),
        model=served.info,
        calibration=None if calibration is None else calibration.info(),
        device=str(host.device),
        device_warning=device_warning,
        queue=queue,
        worker=host.node,
        timings_ms=_timings(generations, waited_s, loading_s, total_s),
        warnings=tuple(warnings if device_warning is None else [device_warning, *warnings]),
    )
    return result.model_dump(mode="json")


def _cancelled_before_start() -> JobError:
    return JobError(ErrorCode.CANCELLED, "the job was cancelled before it started, as asked")


def wait_for_model(
    engine_thread: EngineThread, entry: CacheEntry, deadline: float | None, context: JobContext
) -> LoadedModel:
    """Wait until the job's model is loaded, unless the job is late or cancelled before."""
    while not entry.wait(0):
        if not engine_thread.is_alive:
            raise EngineDied
        left_s = math.inf if deadline is None else deadline - time.monotonic()
        if left_s <= 0:
            late = f"the deadline passed while the model {entry.name} was being loaded; allow more time"
            raise JobError(ErrorCode.DEADLINE, late, "deadline_s")
        if context.is_cancelled():
            raise _cancelled_before_start()
        entry.wait(min(CHECK_INTERVAL_S, left_s))
    return entry.served


def _request(series: PreparedSeries, job: ForecastJob, deadline: float | None) -> SeriesRequest:
    return SeriesRequest(
        bars=to_bars(series.columns),
        stamps=time_features(series.wall),
        future_stamps=time_features(series.future_wall),
        sampling=SamplingParams(**job.sampling.model_dump() | {"seed": series.seed}),
        deadline=deadline,
        context_policy=job.context_policy,
        streams=job.output.stream,
    )


class EarlyBars:
    """The first bars of a job's result, for a job that streams."""

    def __init__(
        self, series: Sequence[PreparedSeries], output: Output, calibration: Calibration | None
    ) -> None:
        self._series, self._calibration = series, calibration
        self._output = output.model_copy(update={"paths": False, "events": (), "statistics": False})
        self._known: dict[int, SeriesForecast] = {}

    def of(self, generations: Sequence[Generation]) -> tuple[SeriesForecast, ...]:
        """The bars that all paths of a series have, for each series that has some."""
        for index, (one, generation) in enumerate(zip(self._series, generations, strict=False)):
            paths, known = generation.paths_so_far, self._known.get(index)
            if paths is not None and (known is None or len(known.timestamps) < paths.shape[1]):
                self._known[index] = series_result(
                    one, Forecast(paths, one.seed), self._output, self._calibration
                )
        return tuple(known for _, known in sorted(self._known.items()))


def wait_for_run(
    engine_thread: EngineThread, run: JobRun, context: JobContext, early: EarlyBars | None = None
) -> list[Generation]:
    """Wait for the engine. Meanwhile report progress, and cancel the job on request."""
    reported = 0
    try:
        while not engine_thread.wait(run, CHECK_INTERVAL_S):
            if context.is_cancelled():
                engine_thread.cancel(run)
            elif run.num_bars_done != reported:
                reported = run.num_bars_done
                series = () if early is None else early.of(run.generations)
                total = run.num_bars_total
                context.report_progress(ForecastProgress(bars_done=reported, bars_total=total, series=series))
    finally:
        if not run.is_done:  # an error ended the wait
            engine_thread.cancel(run)
    # New exceptions, because JobRun.end removes the traceback.
    if isinstance(run.error, EngineDied):
        raise (DiedInEngine if run.is_inside else EngineDied)
    if isinstance(run.error, KronosError):
        prefix = "" if run.failed_series is None else f"series.{run.failed_series}."
        raise JobError.from_kronos(run.error, prefix=prefix if run.error.field else "")
    return run.result()


def with_lookback_warning(
    series: PreparedSeries, trained_lookback: int | None, min_lookback: int | None
) -> PreparedSeries:
    """Warn of a lookback outside those of a finetuned model's training; without a shortest, there is one."""
    if trained_lookback is None:
        return series
    shortest = min_lookback or trained_lookback
    if shortest <= len(series.wall) <= trained_lookback:
        return series
    trained = f"{trained_lookback}" if shortest == trained_lookback else f"{shortest} to {trained_lookback}"
    text = (
        f"The model was trained on lookbacks of {trained} bars, but this one has {len(series.wall)}: "
        "its forecast may be worse."
    )
    return replace(series, warnings=(*series.warnings, text))


def _timings(generations: Sequence[Generation], waited_s: float, loading_s: float, total_s: float) -> Timings:
    """``queued`` is the wait for worker, model and slots. Each phase is that of the slowest series."""
    phases = [generation.timings.durations_s() for generation in generations]
    seconds = {name: max(phase[name] for phase in phases) for name in ("queued", "prefill", "decode")}
    before_s = max(0.0, waited_s)  # a sender's clock may be ahead of Redis's
    seconds |= {"queued": before_s + loading_s + seconds["queued"], "total": before_s + total_s}
    return Timings(**{name: round(one_s * 1000, 3) for name, one_s in seconds.items()})
