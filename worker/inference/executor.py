"""Computes a forecast job on a process's models. No Celery, no Redis."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from kronos_client import __version__
from kronos_client.contract.calibration import Calibration, check_num_bars
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.forecast import Output
from kronos_client.contract.jobs import ForecastJob, PreparedSeries, check_job, prepare
from kronos_client.contract.results import (
    ForecastProgress,
    ForecastResult,
    SeriesForecast,
    Timings,
    sampling_warnings,
    series_result,
    with_manifests,
)
from kronos_client.redis.job_store import Receipt
from kronos_client.redis.routing import why_elsewhere
from kronos_model.checkpoints.names import short_name_taken
from kronos_model.engine.generation import Generation, Priority, SamplingParams, SeriesRequest
from kronos_model.errors import KronosError
from kronos_model.forecast import Forecast
from worker.deadline import Deadline, late
from worker.inference.engine_thread import EngineDied, JobRun
from worker.inference.model_loader import LoadedModel
from worker.inference.model_server import ModelServer


class Computation:
    """A job from ``read_job`` on a model server: prepared at once, and in the engine once the model is there.

    No method waits, or is called while another is.

    Args:
        receipt: As of now.
        priority: The priority of the message.
        on_change: Called on any thread when ``advance`` may go on.
        submit: ``EngineThread.submit``, or what calls it later.

    Raises:
        JobError: The job ends with this error.
    """

    def __init__(
        self,
        server: ModelServer,
        job_id: str,
        job: ForecastJob,
        receipt: Receipt,
        queue: str,
        priority: Priority,
        on_change: Callable[[], object],
        submit: Callable[[Sequence[JobRun]], object],
    ) -> None:
        self._started = time.monotonic()
        self._server, self._job_id, self._job, self._queue = server, job_id, job, queue
        self._priority, self._on_change, self._send = priority, on_change, submit
        given = (job.device, str(server.device), server.device_warning)
        self._device_warning = why_elsewhere(*given, allow_fallback=job.allow_fallback)
        model = server.models.find(job.model)
        limits = server.models.limits_of(model)
        check_job(job, limits)
        self._calibration = server.models.calibration_for(job, model) if job.output.calibrated else None
        self._series = prepare(job, job_id, limits)
        if self._calibration is not None:
            check_num_bars([len(series.bars) for series in self._series], self._calibration)
        self._waited_s = receipt.waited_s(job.submitted_at)
        self._deadline = Deadline.after(self._waited_s, job.deadline_s)
        if self._deadline.has_passed():
            waited = f"the job waited {self._waited_s:.1f} s, longer than its deadline of {job.deadline_s} s"
            raise late(waited, "allow more time or add workers")
        if receipt.is_cancelled:
            raise cancelled_before_start()
        self._run: JobRun | None = None
        self._reported = 0
        self._loading_s = 0.0
        self._early: EarlyBars | None = None
        self._entry = server.models.hold(model)
        if not self._entry.loading.done():
            self._entry.loading.add_done_callback(lambda _: on_change())

    def advance(self) -> bool:
        """Go on as far as possible; whether the job has ended, so that it has its ``result``.

        Raises:
            JobError: The job ends with this error.
            EngineDied: Another process must compute the job.
        """
        engine_thread = self._server.engine_thread
        if self._run is not None:
            return engine_thread.has_ended(self._run)
        if self._entry.loading.done():
            self._submit(self._entry.served)
        elif not engine_thread.is_alive:
            raise EngineDied
        elif self._deadline.has_passed():
            raise late(f"the deadline passed while the model {self._entry.name} was being loaded")
        return False

    def cancel(self) -> None:
        """Cancel the job. Raises JobError if it is not in the engine yet."""
        if self._run is None:
            raise cancelled_before_start()
        self._server.engine_thread.cancel(self._run)

    def new_progress(self) -> ForecastProgress | None:
        """The progress of a job in the engine; None if there was none since the last call."""
        run = self._run
        if run is None or run.num_bars_done == self._reported:
            return None
        self._reported = run.num_bars_done
        series = () if self._early is None else self._early.first_bars(run.generations)
        return ForecastProgress(bars_done=self._reported, bars_total=run.num_bars_total, series=series)

    def result(self) -> ForecastResult:
        """The result, once the job has ended.

        Raises:
            JobError: The job ends with this error.
            EngineDied: Another process must compute the job.
        """
        assert self._run is not None
        generations = _generations_of(self._run)
        served, job, server = self._entry.served, self._job, self._server
        total_s = time.monotonic() - self._started
        warnings = [self._device_warning, served.engine_warning, served.caution, *sampling_warnings(job)]
        warnings += short_name_taken(job.model, served.registered.reference if served.registered else None)
        forecasts = (
            series_result(series, Forecast(generation.paths, series.seed), job.output, self._calibration)
            for series, generation in zip(self._series, generations, strict=True)
        )
        facts: Any = {"model": served.info, "engine": served.engine_kind, "device": str(server.device)}
        corrected_by = self._calibration
        about = facts | {
            "version": __version__,
            "calibration": None if corrected_by is None else corrected_by.hash,
        }
        return ForecastResult(
            series=with_manifests(forecasts, job, self._series, **about),
            calibration=None if corrected_by is None else corrected_by.info(),
            device_warning=self._device_warning,
            **facts,
            queue=self._queue,
            worker=server.node,
            timings_ms=_timings(generations, self._waited_s, self._loading_s, total_s),
            warnings=tuple(filter(None, warnings)),
        )

    def close(self) -> None:
        """Leave the engine and the model to others."""
        if self._run is not None and not self._run.is_done:
            self._server.engine_thread.cancel(self._run)
        self._server.models.release(self._entry)

    def _submit(self, served: LoadedModel) -> None:
        job = self._job
        self._loading_s = time.monotonic() - self._started
        num_bars = job.num_bars_read(served.lookback, served.max_context, served.min_lookback)
        if self._calibration is not None:
            num_bars = self._calibration.lookback
        trained = served.lookback, served.min_lookback
        lookbacks = [series.last(num_bars) for series in self._series]
        self._series = tuple(with_lookback_warning(series, *trained) for series in lookbacks)
        given = job, self._deadline.at, self._priority, self._job_id
        requests = [_request(series, *given) for series in self._series]
        if job.output.stream:
            self._early = EarlyBars(self._series, job.output, self._calibration)
        self._run = JobRun(self._job_id, requests, served.engine, self._on_change)
        self._send([self._run])


def cancelled_before_start() -> JobError:
    """The error of a job that was cancelled before the engine had it."""
    return JobError(ErrorCode.CANCELLED, "the job was cancelled before it started, as asked")


def _generations_of(run: JobRun) -> list[Generation]:
    # New exceptions, because JobRun.end removes the traceback.
    if isinstance(run.error, EngineDied):
        raise EngineDied(was_inside=run in run.model.runs)
    if isinstance(run.error, KronosError):
        prefix = "" if run.failed_series is None else f"series.{run.failed_series}."
        raise JobError.from_kronos(run.error, prefix=prefix if run.error.field else "")
    if run.error is not None:
        raise run.error
    return run.generations


def _request(
    series: PreparedSeries, job: ForecastJob, deadline: float, priority: Priority, job_id: str
) -> SeriesRequest:
    return SeriesRequest(
        bars=series.bars,
        stamps=series.stamps,
        future_stamps=series.future_stamps,
        sampling=SamplingParams(**vars(job.sampling) | {"seed": series.seed}),
        deadline=deadline,
        context_policy=job.context_policy,
        priority=priority,
        job=job_id,
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

    def first_bars(self, generations: Sequence[Generation]) -> tuple[SeriesForecast, ...]:
        """The bars that all paths of a series have, for each series that has some."""
        for index, (series, generation) in enumerate(zip(self._series, generations, strict=False)):
            paths, known = generation.paths_so_far, self._known.get(index)
            if paths is not None and (known is None or len(known.timestamps) < paths.shape[1]):
                self._known[index] = series_result(
                    series, Forecast(paths, series.seed), self._output, self._calibration
                )
        return tuple(known for _, known in sorted(self._known.items()))


def with_lookback_warning(
    series: PreparedSeries, trained_lookback: int | None, min_lookback: int | None
) -> PreparedSeries:
    """Warn if a finetuned model was trained on other lookbacks. Without a shortest one, it had only one."""
    if trained_lookback is None:
        return series
    shortest = min_lookback or trained_lookback
    if shortest <= len(series.bars) <= trained_lookback:
        return series
    trained = f"{trained_lookback}" if shortest == trained_lookback else f"{shortest} to {trained_lookback}"
    text = (
        f"The model was trained on lookbacks of {trained} bars, but this one has {len(series.bars)}: "
        "its forecast may be worse."
    )
    return replace(series, warnings=(*series.warnings, text))


def _timings(generations: Sequence[Generation], waited_s: float, loading_s: float, total_s: float) -> Timings:
    """``queued`` is the wait for worker, model and slots. Each phase has the time of the slowest series."""
    phases = [generation.timings.durations_s() for generation in generations]
    seconds = {name: max(phase[name] for phase in phases) for name in ("queued", "prefill", "decode")}
    before_s = max(0.0, waited_s)  # a sender's clock may be ahead of Redis's
    seconds |= {"queued": before_s + loading_s + seconds["queued"], "total": before_s + total_s}
    return Timings(**{name: round(elapsed_s * 1000, 3) for name, elapsed_s in seconds.items()})
