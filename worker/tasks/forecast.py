"""``kronos.forecast``: one job from the queue to its one outcome."""

import logging
import math
import os
import time
from collections.abc import Sequence
from typing import Any, Final

from celery import Task
from celery.exceptions import BackendError, Ignore, Reject
from kombu.exceptions import OperationalError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from kronos_model.candles import time_features, to_bars
from kronos_model.engine.generation import Generation, SamplingParams, SeriesRequest
from kronos_model.errors import KronosError
from kronos_model.forecast import Forecast
from worker.app import app
from worker.bootstrap import current_process
from worker.connection import refuses_writes
from worker.contract.errors import ErrorCode, JobError
from worker.contract.jobs import ForecastJob, PreparedSeries, parse_job, prepare
from worker.contract.limits import check_job
from worker.contract.names import FORECAST_TASK, PROGRESS_STATE
from worker.contract.results import ForecastResult, SeriesForecast, Timings, series_result
from worker.jobs import Receipt
from worker.loading import Loadable
from worker.process import WorkerProcess
from worker.resident import Resident, ServedModel
from worker.routing import why_elsewhere
from worker.runs import JobRun
from worker.service import EngineDied, deadline_from
from worker.tasks.payload import job_of

log = logging.getLogger(__name__)

PROGRESS_INTERVAL_S: Final = 1.0
REQUEUE_DELAY_S: Final = 1.0
RESULT_REPR_CHARS: Final = 64
"""Of a result in events and Flower: a forecast's numbers say nothing there, and writing them takes long."""


@app.task(
    name=FORECAST_TASK,
    bind=True,
    throws=(JobError,),
    typing=False,
    track_started=False,  # the result backend's begin does it
    resultrepr_maxsize=RESULT_REPR_CHARS,
)
def forecast(self: "Task[Any, Any]", /, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Compute one job; its result as JSON, or JobError.

    Whatever goes wrong with it becomes a JobError with a code, so that every job ends in one of the two.
    Where nothing is wrong with the job, it goes back to the queue.
    """
    process: WorkerProcess = current_process()
    job_id = str(self.request.id)
    try:
        result = _run(self, process, job_id, job_of(args, kwargs))
    except EngineDied as error:
        raise Reject(str(error), requeue=True) from None
    except Ignore:
        raise
    except (RedisConnectionError, RedisTimeoutError, BackendError, OperationalError) as error:
        time.sleep(REQUEUE_DELAY_S)  # else it comes straight back, as often as the machine can
        raise Reject(f"{type(error).__name__}: {error}", requeue=True) from None
    except JobError as error:
        _count(process, error.code)
        raise
    except Exception:  # the last line of defence: an uncoded error would leak a traceback to the caller
        log.exception("job %s failed on a defect", job_id)
        _count(process, ErrorCode.INTERNAL)
        raise JobError(ErrorCode.INTERNAL, "a defect in the worker; report it with the job's id") from None
    _count(process)
    return result


def _run(task: "Task[Any, Any]", process: WorkerProcess, job_id: str, payload: Any) -> dict[str, Any]:
    started = time.monotonic()
    backend: Any = task.backend
    try:
        receipt: Receipt | None = backend.begin(job_id, task.request, pid=os.getpid(), hostname=process.node)
    except ResponseError as error:
        if refuses_writes(error):  # as good as away
            raise OperationalError(str(error)) from error
        raise
    if receipt is None:
        # Delivered again after it was done, or submitted twice: the one outcome stands.
        raise Ignore
    job = parse_job(payload, process.limits)
    device_warning = why_elsewhere(
        job.device, str(process.device), process.device_warning, allow_fallback=job.allow_fallback
    )
    model = _find_model(job, process)
    series = prepare(job, job_id, process.limits)
    waited_s = receipt.waited_s(job.submitted_at)
    remaining_s = None if job.deadline_s is None else job.deadline_s - waited_s
    if remaining_s is not None and remaining_s <= 0:
        raise JobError(
            ErrorCode.DEADLINE,
            f"the job waited {waited_s:.1f} s, longer than its deadline of {job.deadline_s} s; "
            "allow more time or add workers",
            "deadline_s",
        )
    if receipt.is_cancelled:
        raise JobError(ErrorCode.CANCELLED, "the job was cancelled before it started, as asked")

    deadline = deadline_from(remaining_s)
    loading_started = time.monotonic()
    with process.models.use(model) as resident:
        served = _wait_for_model(process, job_id, resident, deadline)
        loading_s = time.monotonic() - loading_started
        requests = [_request(one, job, deadline) for one in series]
        run = process.service.submit(job_id, requests, served.hosted)
        generations = _wait(task, process, run)
    total_s = time.monotonic() - started
    summaries = [_summary(*both, job) for both in zip(series, generations, strict=True)]
    warnings = [warning for one in series for warning in one.warnings]
    warnings += lookback_warnings(series, served)
    result = ForecastResult(
        series=tuple(summaries),
        model=served.info,
        device=str(process.device),
        device_warning=device_warning,
        queue=_queue_of(task, process),
        worker=process.node,
        timings_ms=_timings(generations, waited_s, loading_s, total_s),
        warnings=tuple(warnings if device_warning is None else [device_warning, *warnings]),
    )
    return result.model_dump(mode="json")


def _find_model(job: ForecastJob, process: WorkerProcess) -> Loadable | None:
    """The model that the job names and may, where it asks for no more than that one can see."""
    model = process.models.find(job.model)
    check_job(job, process.limits_of(model))
    return model


def _wait_for_model(
    process: WorkerProcess, job_id: str, resident: Resident, deadline: float | None
) -> ServedModel:
    """The job's model, once it is loaded; meanwhile look whether the job is late or shall be cancelled."""
    while not resident.wait(0):
        process.service.raise_if_dead()
        left_s = math.inf if deadline is None else deadline - time.monotonic()
        if left_s <= 0:
            raise JobError(
                ErrorCode.DEADLINE,
                f"the deadline passed while the model {resident.name} was being loaded; allow more time",
                "deadline_s",
            )
        if process.records.is_cancelled(job_id):
            raise JobError(ErrorCode.CANCELLED, "the job was cancelled before it started, as asked")
        resident.wait(min(PROGRESS_INTERVAL_S, left_s))
    return resident.served


def _request(series: PreparedSeries, job: ForecastJob, deadline: float | None) -> SeriesRequest:
    sampling = job.sampling
    return SeriesRequest(
        bars=to_bars(series.columns),
        stamps=time_features(series.wall),
        future_stamps=time_features(series.future_wall),
        sampling=SamplingParams(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            sample_count=sampling.sample_count,
            seed=series.seed,
        ),
        deadline=deadline,
        context_policy=job.context_policy,
    )


def _wait(task: "Task[Any, Any]", process: WorkerProcess, run: JobRun) -> list[Generation]:
    """Wait for the engine; meanwhile tell how far it is, and look whether the job shall be cancelled."""
    told = 0
    try:
        while not process.service.wait(run, PROGRESS_INTERVAL_S):
            try:
                if process.records.is_cancelled(run.job_id):
                    process.service.cancel(run)
                elif run.num_bars_done != told:
                    told = run.num_bars_done
                    progress = {"bars_done": told, "bars_total": run.num_bars_total}
                    task.update_state(state=PROGRESS_STATE, meta=progress)
            except (RedisError, BackendError, OperationalError) as error:
                log.warning("job %s: progress could not be told: %s", run.job_id, error)
    finally:
        if not run.is_done:  # nobody waits for it any more
            process.service.cancel(run)
    try:
        return run.result()
    except KronosError as error:
        prefix = "" if run.failed_series is None else f"series.{run.failed_series}."
        raise JobError.from_kronos(error, prefix=prefix if error.field else "") from None


def _summary(series: PreparedSeries, generation: Generation, job: ForecastJob) -> SeriesForecast:
    forecast = Forecast(generation.paths, series.seed)
    if job.output.repair:
        forecast = forecast.repaired()
    return series_result(series, forecast, job.output)


def lookback_warnings(series: Sequence[PreparedSeries], served: ServedModel) -> list[str]:
    """A finetuned model has learned where the bars end that its windows are scaled by."""
    return [
        f"Series {one.id!r}: the model was trained on lookbacks of {served.lookback} bars, and this one has "
        f"{len(one.wall)}: its forecast may be worse than it could be."
        for one in series
        if served.lookback is not None and len(one.wall) != served.lookback
    ]


def _queue_of(task: "Task[Any, Any]", process: WorkerProcess) -> str:
    """The queue that the job came by: a CPU worker may be standing in for the gpu pool."""
    delivery = task.request.delivery_info or {}
    return str(delivery.get("routing_key") or process.queue)


def _timings(generations: Sequence[Generation], waited_s: float, loading_s: float, total_s: float) -> Timings:
    """``queued`` counts the wait for worker, model and slots; of each phase, the longest of any series."""
    phases = [generation.timings.durations_s() for generation in generations]
    queued_s, prefill_s, decode_s = (
        max(phase[name] for phase in phases) for name in ("queued", "prefill", "decode")
    )
    before_s = max(0.0, waited_s)  # a sender's clock may be ahead of Redis's
    return Timings(
        queued=round((before_s + loading_s + queued_s) * 1000, 3),
        prefill=round(prefill_s * 1000, 3),
        decode=round(decode_s * 1000, 3),
        total=round((before_s + total_s) * 1000, 3),
    )


def _count(process: WorkerProcess, code: str | None = None) -> None:
    """Count a job that ended; ``code`` is that of its error."""
    process.service.count(succeeded=code is None)
    process.metrics.count_job(code)
