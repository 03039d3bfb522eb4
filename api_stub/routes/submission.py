"""How a request submits its jobs, how long it waits for them, and what it gets after that."""

import asyncio
import hashlib
import uuid
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Self, TypeVar

from fastapi import Depends, Header, Query, Request
from starlette.requests import ClientDisconnect

from api_stub.backend import Backend, BackendDependency
from api_stub.keys import key_of
from api_stub.routes.tables import PreferredTable
from kronos_client.contract.names import MAX_ID_CHARS

IDEMPOTENT_PREFIX: Final = "idem-"
ID_HEX_CHARS: Final = 40

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=MAX_ID_CHARS,
        description="the same key and content give the same job; other content gives 409",
    ),
]
RESPOND_ASYNC: Final = "respond-async"
T = TypeVar("T")


@dataclass(frozen=True)
class Submission:
    """A request's submission of jobs.

    Attributes:
        job_id: A new id, or always the same for an Idempotency-Key.
        scope: Within it, equal jobs may be shared: the bearer key. None if the request has a key of its own.
        is_repeatable: Whether a repeated request finds the same job, which may have been sent before.
        root: The prefix of every address in the answer, such as ``/kronos``, or an empty string.
    """

    job_id: str
    is_repeatable: bool
    root: str
    scope: str | None = None


# async, because FastAPI runs sync dependencies on threads.
async def _submission(request: Request, key: IdempotencyKey = None) -> Submission:
    root = request.scope.get("root_path", "").rstrip("/")
    bearer = key_of(request.scope)
    if key is None:
        return Submission(str(uuid.uuid4()), False, root, scope=bearer)
    parts = (request.url.path, bearer, key)
    # The lengths make sure that different parts never give the same text.
    text = "".join(f"{len(part)}:{part}" for part in parts)
    job_id = IDEMPOTENT_PREFIX + hashlib.sha256(text.encode()).hexdigest()[:ID_HEX_CHARS]
    return Submission(job_id, True, root)


SubmissionDependency = Annotated[Submission, Depends(_submission)]


@dataclass(frozen=True)
class Preference:
    """How long a request waits for its forecast, and what it gets after that.

    Attributes:
        takes_job: Whether an unfinished forecast is answered with the job's address, not with an error.
    """

    wait_s: float
    takes_job: bool

    @property
    def headers(self) -> dict[str, str]:
        """The headers of an answer that has the job's address."""
        return {"Preference-Applied": RESPOND_ASYNC, "Retry-After": "1"}


# async, because FastAPI runs sync dependencies on threads.
async def _preference(
    backend: BackendDependency,
    prefer: Annotated[
        str | None,
        Header(
            description="`respond-async`: answer 202 with the job's address if the forecast is not done; "
            "`wait=10`: wait up to 10 seconds, by default `KRONOS_API_WAIT_S`, or 0 for `respond-async`",
            examples=["respond-async, wait=10"],
        ),
    ] = None,
    respond_async: Annotated[bool, Query(description="the same as `Prefer: respond-async`")] = False,
) -> Preference:
    parts = [part.partition(";")[0].partition("=") for part in (prefer or "").split(",")]
    given = {name.strip().lower(): value.strip(' "') for name, _, value in parts}
    takes_job = respond_async or RESPOND_ASYNC in given
    longest_s = backend.settings.api_wait_s
    wait = given.get("wait", "")
    # A preference that cannot be read is ignored, as RFC 7240 asks.
    if wait.isdecimal() and len(wait) < 10:
        return Preference(min(int(wait), longest_s), takes_job)
    return Preference(0 if takes_job else longest_s, takes_job)


PreferenceDependency = Annotated[Preference, Depends(_preference)]


@dataclass(frozen=True)
class WaitingRequest:
    """A request whose answer waits for forecasts. ``table`` is the media type that it prefers to JSON."""

    request: Request
    backend: Backend
    submission: Submission
    preference: Preference
    table: str | None

    @classmethod
    async def from_request(
        cls,
        request: Request,
        backend: BackendDependency,
        submission: SubmissionDependency,
        preference: PreferenceDependency,
        table: PreferredTable,
    ) -> Self:
        """The request that FastAPI handles."""
        return cls(request, backend, submission, preference, table)

    async def while_connected(self, work: Awaitable[T], to_cancel: Sequence[str]) -> T:
        """The result of ``work``, unless the client closes the connection before that.

        Args:
            to_cancel: the jobs that are then cancelled. They go on if the client can ask for them later: with
                an Idempotency-Key or ``Prefer: respond-async``.

        Raises:
            ClientDisconnect: the connection is closed.
        """
        task, gone = asyncio.ensure_future(work), asyncio.create_task(self._disconnection())
        try:
            await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            gone.result()
            if not (self.submission.is_repeatable or self.preference.takes_job):
                await self.backend.try_to_cancel(to_cancel)
            raise ClientDisconnect
        finally:
            task.cancel()
            gone.cancel()
            await asyncio.gather(task, gone, return_exceptions=True)

    async def _disconnection(self) -> None:
        while (await self.request.receive())["type"] != "http.disconnect":
            pass


Waiting = Annotated[WaitingRequest, Depends(WaitingRequest.from_request)]
