"""Waiting for a forecast no longer than its client does."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from api_stub.backend import Backend
from api_stub.routes.preference import Preference
from api_stub.routes.submission import Submission

T = TypeVar("T")


async def while_connected(
    request: Request,
    work: Awaitable[T],
    to_cancel: Sequence[str],
    backend: Backend,
    submission: Submission,
    preference: Preference,
) -> T:
    """The result of ``work``, unless the client closes the connection before that.

    Args:
        to_cancel: the jobs that are then cancelled. They go on if the client can ask for them later: with an
            Idempotency-Key or ``Prefer: respond-async``.

    Raises:
        ClientDisconnect: the connection is closed.
    """
    task, gone = asyncio.ensure_future(work), asyncio.create_task(_disconnection(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        gone.result()
        if not (submission.is_repeatable or preference.takes_job):
            await backend.try_to_cancel(to_cancel)
        raise ClientDisconnect
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnection(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
