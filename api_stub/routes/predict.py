"""Predictions in one request, with the fields of the reference's HTTP service."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends
from fastapi.responses import Response
from pydantic import BaseModel, Field

from api_stub.addresses import Mount
from api_stub.backend import Backend, BackendDependency
from api_stub.problems import JobFailure
from api_stub.routes.documented import AsDocumented, LargeBodies, checked, json_only
from api_stub.routes.identity import JobId, MayBeRepeated
from api_stub.routes.job_views import FORECASTS_URL, Accepted, Json, accepted, result_of
from api_stub.routes.prediction_jobs import PredictionJob, prediction_jobs
from api_stub.routes.predictions import MAX_ITEMS, Prediction, SingleRequest
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.results import ForecastResult
from kronos_client.core.job import Job
from kronos_client.core.stored import Stored

RETRY_S: Final = 1
MAX_HEADER_IDS: Final = 16

router = APIRouter(
    prefix="/v1/predict", tags=["predict"], dependencies=[Depends(json_only)], route_class=LargeBodies
)


class BatchRequest(BaseModel):
    """Several series."""

    items: Annotated[list[SingleRequest], Field(min_length=1, max_length=MAX_ITEMS)]


SingleBody = Annotated[dict[str, Any], AsDocumented(SingleRequest)]
BatchBody = Annotated[dict[str, Any], AsDocumented(BatchRequest)]


class AcceptedItems(Accepted):
    """A job, with the items that it contains."""

    items: list[int] = Field(description="indices of the request's items in this job")


class AcceptedBatch(BaseModel):
    """The jobs of an unfinished batch."""

    jobs: list[AcceptedItems]


@router.post(
    "/single",
    response_model=Prediction,
    responses={202: {"model": Accepted, "description": "not done in time; the job goes on"}},
)
async def predict_single(
    body: SingleBody, backend: BackendDependency, mount: Mount, job_id: JobId, is_repeatable: MayBeRepeated
) -> Response:
    """Forecast one series, and wait for it up to `KRONOS_API_WAIT_S`."""
    (job,) = prediction_jobs([await checked(SingleRequest, body)], backend.settings, "")
    ((queue, stored, result),) = await _run([job], backend, [job_id], is_repeatable=is_repeatable)
    headers = {"X-Job-Id": job_id}
    if result is None:
        content = accepted(job_id, queue, mount + FORECASTS_URL, stored)
        return Json(content, 202, headers | {"Location": content.url, "Retry-After": str(RETRY_S)})
    (prediction,) = job.predictions(result)
    return Json(prediction, 200, headers)


@router.post(
    "/batch",
    response_model=list[Prediction],
    responses={202: {"model": AcceptedBatch, "description": "not done in time; the jobs go on"}},
)
async def predict_batch(
    body: BatchBody, backend: BackendDependency, mount: Mount, job_id: JobId, is_repeatable: MayBeRepeated
) -> Response:
    """Forecast several series, and wait for all of them up to `KRONOS_API_WAIT_S`. The order is kept.

    Series with the same options and the same number of bars to forecast become one job.
    """
    request = await checked(BatchRequest, body)
    jobs = prediction_jobs(request.items, backend.settings, "items.{index}.")
    ids = [job_id if len(jobs) == 1 else f"{job_id}.{number}" for number in range(len(jobs))]
    outcomes = await _run(jobs, backend, ids, is_repeatable=is_repeatable)
    # More ids would make the header too long for clients and proxies.
    headers = {"X-Job-Id": ", ".join(ids)} if len(ids) <= MAX_HEADER_IDS else {}
    if any(result is None for _, _, result in outcomes):
        unfinished = [
            AcceptedItems(**dict(accepted(one_id, queue, mount + FORECASTS_URL, stored)), items=job.indices)
            for job, one_id, (queue, stored, _) in zip(jobs, ids, outcomes, strict=True)
        ]
        return Json(AcceptedBatch(jobs=unfinished), 202, headers | {"Retry-After": str(RETRY_S)})
    answers: dict[int, Prediction] = {}
    for job, (_, _, result) in zip(jobs, outcomes, strict=True):
        assert result is not None
        answers |= zip(job.indices, job.predictions(result), strict=True)
    return Json([answers[index] for index in sorted(answers)], 200, headers)


Outcome = tuple[str, Stored, ForecastResult | None]
"""A job's queue, its state, and its result if it is done."""


async def _run(
    jobs: Sequence[PredictionJob], backend: Backend, ids: Sequence[str], *, is_repeatable: bool
) -> list[Outcome]:
    """Enqueue the jobs and wait for them. A job that is not done in time has no result.

    Raises JobError if a job cannot be sent, and JobFailure if one fails. Its ``details`` name the other jobs.
    These are cancelled, unless the same request can be repeated and would find them again.
    """
    queues = await _submit(jobs, backend, ids, is_repeatable=is_repeatable)

    async def wait(job: PredictionJob, job_id: str, queue: str) -> Outcome:
        try:
            stored = await backend.wait(job_id, backend.settings.api_wait_s)
            result = result_of(ForecastResult, stored)
            if stored.has_ended and result is None:
                raise stored.value
        except JobError as error:
            raise JobFailure(job.in_request(error), job_id) from None
        return queue, stored, result

    # A TaskGroup would wrap the error in an ExceptionGroup.
    tasks = [asyncio.create_task(wait(*one)) for one in zip(jobs, ids, queues, strict=True)]
    try:
        return await asyncio.gather(*tasks)
    except JobFailure as failure:
        others = [job_id for job_id in ids if job_id != failure.job_id]
        if not others:
            raise
        may_finish = failure.error.code == ErrorCode.BROKER_UNREACHABLE
        if not is_repeatable and not may_finish:
            await backend.call(_cancel, backend, others)
        raise failure.with_others(others) from None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _submit(
    jobs: Sequence[PredictionJob], backend: Backend, ids: Sequence[str], *, is_repeatable: bool
) -> list[str]:
    """Check all jobs of a request, then send all or none. Returns their queues."""

    def check() -> list[Job]:
        return [job.checked(job_id, backend.settings) for job, job_id in zip(jobs, ids, strict=True)]

    async def send(job: Job) -> str:
        return (await backend.core.send(lambda: job, may_stay=True))[1]

    queues: list[str] = []
    for job, checked_job in zip(jobs, await backend.call(check), strict=True):
        try:
            queues.append(await send(checked_job))
        except JobError as error:
            if not is_repeatable:  # a repeated request would find the jobs again
                await backend.call(_cancel, backend, ids[: len(queues)])
            raise job.in_request(error) from None
    return queues


def _cancel(backend: Backend, job_ids: Sequence[str]) -> None:
    """Cancel jobs until Redis fails. A job that has ended stays as it is. Blocks."""
    with suppress(JobError):  # the request reports its own error
        for job_id in job_ids:
            backend.dispatcher.cancel(job_id)
