"""Routes of forecasts, finetuning jobs and backtests: enqueue, read, follow, cancel."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Path, Query, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel, Field, create_model

from api_stub.backend import Backend, BackendDependency
from api_stub.job_state import problem_of
from api_stub.keys import KeyScope, needs
from api_stub.problems import HttpError
from api_stub.routes.documented import AsDocumented, LargeBodies, json_only
from api_stub.routes.job_views import (
    BACKTESTS,
    FINETUNES,
    FORECASTS,
    Accepted,
    AnyJobView,
    BacktestView,
    FinetuneView,
    ForecastView,
    JobSummary,
    JobsView,
)
from api_stub.routes.query import Cursor, Limit
from api_stub.routes.submission import SubmissionDependency
from api_stub.routes.tables import AS_TABLES, PreferredTable, table_response
from api_stub.webhooks.sender import WebhooksDependency
from kronos_client.contract.backtest import BacktestJob
from kronos_client.contract.errors import JobError
from kronos_client.contract.finetune import FinetuneJob
from kronos_client.contract.forecast import ForecastJob
from kronos_client.contract.names import MAX_ID_CHARS, is_shared
from kronos_client.core.job import checked_job
from kronos_client.core.kinds import progress_of
from kronos_client.core.stored import Stored

AnyId = Annotated[str, Path(max_length=MAX_ID_CHARS, description="id of the job")]


Webhook = Annotated[
    str | None, Field(description="address to call when the job ends; see docs/use/http.md", examples=[None])
]
TIME: Final = r"^\d{1,12}(\.\d{1,9})?$"
"""A job's time of submission, which is the cursor of a list."""


async def _existing_id(job_id: AnyId, backend: BackendDependency) -> str:
    """Answers 404 for an unknown job, which is impossible once the events have begun."""
    await backend.read(job_id)
    return job_id


def _router(
    url: str, scope: KeyScope, job_model: type[BaseModel], view: type[AnyJobView], cancelled: str
) -> APIRouter:
    kind, tag = view.kind, url.rpartition("/")[2]
    router = APIRouter(
        prefix=url, tags=[tag], dependencies=[needs(scope), Depends(json_only)], route_class=LargeBodies
    )
    documented = create_model(job_model.__name__, __base__=job_model, webhook=(Webhook, None))
    enqueuing = (
        f"Enqueue a {kind.name} job as in docs/reference/contract.md. The answer does not wait for it."
    )
    listing = f"The newest {kind.name} jobs that this API and the Python clients submitted."
    cancelling = f"Cancel {cancelled}. A job that has ended stays as it is."

    @router.post("", name=f"submit_{kind.name}", status_code=202, description=enqueuing)
    async def enqueue(
        job: Annotated[dict[str, Any], AsDocumented(documented)],
        backend: BackendDependency,
        submission: SubmissionDependency,
        webhooks: WebhooksDependency,
        response: Response,
    ) -> Accepted:
        webhook = webhooks.checked(job.pop("webhook", None))
        make = partial(checked_job, kind, job, submission.job_id, backend.settings)
        scope = None if webhook else submission.scope  # a job has one webhook
        sent, queue = await backend.core.send(make, may_stay=True, scope=scope)
        await webhooks.add(sent.id, f"{submission.root}{url}/{sent.id}", webhook)
        # A new job waits in its queue. Only a job that was sent before may have progressed.
        may_have_begun = submission.is_repeatable or is_shared(sent.id)
        found = [await backend.read(sent.id) if may_have_begun else Stored(queue=queue)]
        (stored,) = await backend.events.explained(found)
        content = Accepted.from_stored(sent.id, queue, submission.root + url, stored)
        response.headers.update({"X-Job-Id": sent.id, "Location": content.url})
        return content

    @router.get("", name=f"list_{kind.name}s", dependencies=[needs("admin")], description=listing)
    async def list_jobs(
        backend: BackendDependency,
        submission: SubmissionDependency,
        limit: Limit = 100,
        cursor: Annotated[Cursor, Query(pattern=TIME)] = None,
    ) -> JobsView:
        until = None if cursor is None else float(cursor)
        found, following = await backend.list_jobs(kind.name, limit, until)
        return JobsView(
            jobs=[JobSummary.from_job(job, submission.root + url) for job in found],
            next=None if following is None else repr(following),
        )

    as_tables: dict[int | str, dict[str, Any]] = {
        **AS_TABLES,
        202: {"model": view, "description": "a table is preferred, and there is no result yet"},
    }

    @router.get(
        "/{job_id}",
        name=f"get_{kind.name}",
        response_model=view,
        responses=as_tables if view is ForecastView else None,
    )
    async def get(
        job_id: AnyId,
        backend: BackendDependency,
        table: PreferredTable,
        response: Response,
        estimate: Annotated[
            bool, Query(description="whether to say how many jobs come before it, and how long it takes")
        ] = False,
    ) -> BaseModel | Response:
        """The job's state and progress, and its result once it is done."""
        stored = await backend.read(job_id)
        found = view.from_stored(job_id, stored)
        if estimate and not stored.has_ended:
            facts = await backend.facts(job_id)
            found.jobs_before, found.seconds_left = facts.num_before, facts.left_s
        if table is None or not isinstance(found, ForecastView):
            return found
        if found.result is not None:
            return await table_response(table, found.result.series, found.result.warnings, {})
        if stored.has_ended:
            raise HttpError.from_job(stored.value, job_id)
        response.status_code = 202  # no table yet
        return found

    @router.delete(
        "/{job_id}", name=f"cancel_{kind.name}", status_code=202, response_model=view, description=cancelling
    )
    async def cancel(
        job_id: AnyId,
        backend: BackendDependency,
        forget: Annotated[
            bool, Query(description="whether to delete the result of a job that is done")
        ] = False,
    ) -> BaseModel:
        stored = await backend.cancel(job_id)
        if forget and await backend.forget(job_id):
            stored = await backend.read(job_id)
        return view.from_stored(job_id, stored)

    @router.get("/{job_id}/events", name=f"follow_{kind.name}", response_class=EventSourceResponse)
    async def events(
        job_id: Annotated[str, Depends(_existing_id)], backend: BackendDependency
    ) -> AsyncIterator[ServerSentEvent]:
        """The job's states as they change: `progress` events, then one `end` event with result or error.

        If the job streams, `bars` events hold all bars that are done so far.
        """
        async with aclosing(_followed(job_id, backend, view)) as followed:
            async for event in followed:
                yield event

    return router


async def _followed(
    job_id: str, backend: Backend, view: type[AnyJobView]
) -> AsyncGenerator[ServerSentEvent, None]:
    """The events of a job.

    A job that is lost ends the stream with one ``problem`` event. If this process stops before the job ends,
    the stream ends without either, and the client must ask again.
    """
    sent: list[Any] = []
    try:
        async with aclosing(backend.events.states(job_id)) as states:
            async for stored in states:
                if (series := progress_of(stored).get("series", sent)) != sent:
                    sent = series
                    yield ServerSentEvent(data={"id": job_id, "series": series}, event="bars")
                event = "end" if stored.has_ended else "progress"
                yield ServerSentEvent(data=view.from_stored(job_id, stored), event=event)
    except JobError as error:  # the response has begun, so its status cannot change
        yield ServerSentEvent(data=problem_of(error), event="problem")


router = APIRouter()
for part in (
    _router(FORECASTS, "predict", ForecastJob, ForecastView, "the job"),
    _router(FINETUNES, "train", FinetuneJob, FinetuneView, "training; its best checkpoint is kept"),
    _router(BACKTESTS, "train", BacktestJob, BacktestView, "the backtest and its forecasts"),
):
    router.include_router(part)
