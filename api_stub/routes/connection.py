"""Waiting for forecasts no longer than the client of the request does."""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Annotated, Self, TypeVar

from fastapi import Depends, Request
from starlette.requests import ClientDisconnect

from api_stub.backend import Backend, BackendDependency
from api_stub.routes.preference import Preference, PreferenceDependency
from api_stub.routes.submission import Submission, SubmissionDependency
from api_stub.routes.tables import PreferredTable

T = TypeVar("T")


@dataclass(frozen=True)
class WaitingRequest:
    """A request whose answer waits for forecasts. ``table`` is the media type that it prefers to JSON."""

    request: Request
    backend: Backend
    submission: Submission
    preference: Preference
    table: str | None

    @classmethod
    async def of(
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


Waiting = Annotated[WaitingRequest, Depends(WaitingRequest.of)]
