"""Predictions in one request, with the fields of the reference's HTTP service."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, TypeVar

from fastapi import APIRouter, Depends, Response
from pydantic import BaseModel, Field
from pydantic_core import to_json

from api_stub.keys import needs
from api_stub.problems import HttpCode, HttpError
from api_stub.routes.documented import AsDocumented, LargeBodies, checked, json_only
from api_stub.routes.job_views import FORECASTS, Accepted
from api_stub.routes.prediction_jobs import PredictionJob, prediction_jobs
from api_stub.routes.predictions import MAX_ITEMS, Prediction, SingleRequest
from api_stub.routes.submission import Waiting, WaitingRequest
from api_stub.routes.tables import AS_TABLES, table_response
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import is_shared
from kronos_client.contract.results import ForecastResult
from kronos_client.core.job import Job
from kronos_client.core.kinds import FORECAST
from kronos_client.core.stored import Stored

MAX_HEADER_IDS: Final = 16

Answer = TypeVar("Answer")
Outcome = tuple[PredictionJob, str, Stored, ForecastResult | None]
"""A job, its queue, its state, and its result if it is done in time."""

router = APIRouter(
    prefix="/v1/predict",
    tags=["predict"],
    dependencies=[needs("predict"), Depends(json_only)],
    route_class=LargeBodies,
)


class BatchRequest(BaseModel):
    """Several series."""

    items: Annotated[list[SingleRequest], Field(min_length=1, max_length=MAX_ITEMS)]


class AcceptedItems(Accepted):
    """A job, with the items that it contains."""

    items: list[int] = Field(description="indices of the request's items in this job")


class AcceptedBatch(BaseModel):
    """The jobs of an unfinished batch."""

    jobs: list[AcceptedItems]


@router.post(
    "/single",
    response_model=Prediction,
    responses=AS_TABLES
    | {202: {"model": Accepted, "description": "preferred, and not done in time; the job goes on"}},
)
async def predict_single(
    waiting: Waiting, body: Annotated[dict[str, Any], AsDocumented(SingleRequest)]
) -> Response:
    """Forecast one series, and wait for it up to `KRONOS_API_WAIT_S`, then 504 or, if preferred, 202."""
    request = await checked(SingleRequest, body)
    ((job, queue, stored, result),) = await _run([request], "", waiting)
    headers = {"X-Job-Id": job.id}
    if result is not None and waiting.table is not None:
        return await table_response(waiting.table, job.named_series(result), result.warnings, headers)
    if result is not None:
        return _json(job.predictions(result)[0], 200, headers)
    content = Accepted.from_stored(job.id, queue, waiting.submission.root + FORECASTS, stored)
    return _json(content, 202, headers | waiting.preference.headers | {"Location": content.url})


@router.post(
    "/batch",
    response_model=list[Prediction],
    responses=AS_TABLES
    | {202: {"model": AcceptedBatch, "description": "preferred, and not done in time; the jobs go on"}},
)
async def predict_batch(
    waiting: Waiting, body: Annotated[dict[str, Any], AsDocumented(BatchRequest)]
) -> Response:
    """Forecast several series, and wait for all of them, as for a single one. The order is kept.

    Series with the same options and the same number of bars to forecast become one job.
    """
    request = await checked(BatchRequest, body)
    outcomes = await _run(request.items, "items.{index}.", waiting)
    job_ids = [job.id for job, *_ in outcomes]
    # More ids would make the header too long for clients and proxies.
    headers = {"X-Job-Id": ", ".join(job_ids)} if len(job_ids) <= MAX_HEADER_IDS else {}
    if any(result is None for *_, result in outcomes):
        url = waiting.submission.root + FORECASTS
        accepted = [
            AcceptedItems.from_stored(job.id, queue, url, stored, items=job.indices)
            for job, queue, stored, _ in outcomes
        ]
        return _json(AcceptedBatch(jobs=accepted), 202, headers | waiting.preference.headers)
    if waiting.table is not None:
        named = _in_order(outcomes, PredictionJob.named_series)
        warnings = [text for *_, result in outcomes if result for text in result.warnings]
        return await table_response(waiting.table, named, warnings, headers)
    return _json(_in_order(outcomes, PredictionJob.predictions), 200, headers)


def _in_order(
    outcomes: Sequence[Outcome], answers_of: Callable[[PredictionJob, ForecastResult], Sequence[Answer]]
) -> list[Answer]:
    """The answers for the items of a request, all of whose jobs are done."""
    answers: dict[int, Answer] = {}
    for job, _, _, result in outcomes:
        assert result is not None
        answers |= zip(job.indices, answers_of(job, result), strict=True)
    return [answers[index] for index in sorted(answers)]


def _json(content: BaseModel | list[Prediction], status: int, headers: dict[str, str]) -> Response:
    return Response(to_json(content), status, headers, "application/json")


async def _run(items: Sequence[SingleRequest], prefix: str, waiting: WaitingRequest) -> list[Outcome]:
    """Enqueue the items as jobs and wait for them. ``prefix`` is that of ``PredictionJob``.

    Raises JobError if a job cannot be sent, and HttpError if one fails, or is not done in time and the
    request does not take jobs. Its ``details`` name the other jobs. The jobs that go on are cancelled, unless
    the same request can be repeated and would find them again.
    """
    backend, submission = waiting.backend, waiting.submission

    async def wait(job: PredictionJob, queue: str) -> Outcome:
        try:
            stored = await backend.core.wait(job.id, waiting.preference.wait_s)
            result = FORECAST.result_of(stored)
            if result is None and not waiting.preference.takes_job:
                raise _unfinished(job.id, waiting, stored)
        except JobError as error:
            raise HttpError.from_job(job.in_request(error), job.id) from None
        return job, queue, stored, result

    sent = await _send(prediction_jobs(items, submission.job_id, prefix, backend.settings), waiting)
    job_ids = [job.id for job, _ in sent]
    # A TaskGroup would wrap the error in an ExceptionGroup.
    tasks = [asyncio.create_task(wait(job, queue)) for job, queue in sent]
    try:
        return await waiting.while_connected(asyncio.gather(*tasks), job_ids)
    except HttpError as failure:
        if others := [job_id for job_id in job_ids if job_id != failure.job_id]:
            failure.details["other_jobs"] = others
        if not submission.is_repeatable and failure.code != ErrorCode.BROKER_UNREACHABLE:
            await backend.try_to_cancel(job_ids)
        raise
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _unfinished(job_id: str, waiting: WaitingRequest, stored: Stored) -> JobError:
    """The error of a request that does not take jobs, if one is not done in time."""
    outcome = (
        "it goes on: repeat the request with its Idempotency-Key"
        if waiting.submission.is_repeatable
        else "it goes on, since others may share it: repeat the request"
        if is_shared(job_id)
        else "it is being cancelled: repeat the request, ask for less, or send `Prefer: respond-async`"
    )
    if waiting.backend.events.is_released:
        return JobError(HttpCode.OVERLOADED, f"the service is stopping; of the forecast: {outcome}")
    reason = "" if stored.waiting is None else f"{stored.waiting}; "
    message = f"{reason}the forecast was not done within {waiting.preference.wait_s:g} s; {outcome}"
    return JobError(ErrorCode.TIMEOUT, message)


async def _send(jobs: Sequence[PredictionJob], waiting: WaitingRequest) -> list[tuple[PredictionJob, str]]:
    """Check all jobs of a request, then send all or none. Returns them as sent, each with its queue."""
    backend, submission = waiting.backend, waiting.submission

    def check() -> list[Job]:
        return [job.checked(backend.settings) for job in jobs]

    async def send(job: Job) -> tuple[Job, str]:
        return await backend.core.send(lambda: job, may_stay=True, scope=submission.scope)

    all_sent: list[tuple[PredictionJob, str]] = []
    for job, ready in zip(jobs, await backend.call(check), strict=True):
        try:
            sent, queue = await send(ready)
            all_sent.append((replace(job, id=sent.id), queue))
        except JobError as error:
            if not submission.is_repeatable:  # a repeated request would find the jobs again
                await backend.try_to_cancel([job.id for job, _ in all_sent])
            raise job.in_request(error) from None
    return all_sent
