"""Core: sends and awaits jobs in one event loop, for all clients and the HTTP API."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.core.dispatcher import Dispatcher, Retries
from kronos_client.core.job import Job
from kronos_client.core.result_events import AWAY_FOR_S, ResultEvents
from kronos_client.core.result_store import ResultStore
from kronos_client.core.stored import NOTHING, Stored
from kronos_client.settings import ClientSettings

Call = Callable[..., Awaitable[Any]]
"""Runs a blocking function with its arguments on a thread, as ``asyncio.to_thread``."""


@dataclass(eq=False)
class Unsent:
    """A job that is to be made and sent. ``answer`` is its queue, or why it was not enqueued."""

    make_job: Callable[[], Job]
    scope: str | None = None
    job: Job | None = None
    answer: str | Exception | None = None
    is_given_up: bool = False


class Core:
    """Sends jobs on threads, and waits for their results on its event loop.

    Args:
        dispatcher: Stays open when the core is closed, since it may be shared.
        away_for_s: Seconds that Redis may be unreachable while a caller waits.
    """

    def __init__(
        self,
        settings: ClientSettings,
        dispatcher: Dispatcher,
        store: ResultStore,
        *,
        call: Call = asyncio.to_thread,
        away_for_s: float = AWAY_FOR_S,
    ) -> None:
        self.settings = settings
        self.dispatcher = dispatcher
        self.events = ResultEvents(store, dispatcher, away_for_s)
        self.call = call
        self.on_close: set[Callable[[], Awaitable[None]]] = set()

    async def close(self) -> None:
        """Cancel the jobs of unfinished loops, end all waiting, and close this event loop's connections."""
        for leave in list(self.on_close):
            await leave()
        await self.events.close()

    async def send(
        self,
        make_job: Callable[[], Job],
        retry_for_s: float = 0.0,
        *,
        may_stay: bool,
        scope: str | None = None,
        send: Callable[[Unsent], Awaitable[None]] | None = None,
    ) -> tuple[Job, str]:
        """Make a job and send it on a thread, with retries; returns the job and its queue.

        If this task is cancelled meanwhile, the job is cancelled as soon as it is enqueued, unless it
        ``may_stay`` because the caller has its id.

        Args:
            scope: As ``Dispatcher.shared`` takes it.
            send: Calls ``send_all`` with this job and others.
        """
        retries, unsent = Retries(retry_for_s), Unsent(make_job, scope)
        try:
            while True:
                try:
                    await (send(unsent) if send else self.send_all([unsent]))
                    if isinstance(unsent.answer, Exception):
                        raise unsent.answer
                    assert unsent.job is not None
                    assert unsent.answer is not None
                    return unsent.job, unsent.answer
                except JobError as error:
                    await asyncio.sleep(retries.pause_s(error))
        except asyncio.CancelledError:
            if not may_stay:
                unsent.is_given_up = True
                if unsent.job is not None and unsent.answer is not None:  # else the thread sees the flag
                    cancel = self.dispatcher.try_to_cancel
                    asyncio.get_running_loop().run_in_executor(None, cancel, unsent.job.id)
            raise

    async def wait(self, job_id: str, timeout_s: float, *, while_unserved: bool = True) -> Stored:
        """The stored state of a job when it has ended, time is up, or ``events.release`` was called.

        Args:
            while_unserved: Whether to wait while no worker can take the job, too.

        Raises:
            JobError: LOST or RESULT_EXPIRED if there is nothing to wait for, BROKER_UNREACHABLE.
        """
        last = NOTHING
        try:
            async with aclosing(self.events.states(job_id, timeout_s)) as states:
                async for stored in states:
                    last = stored
                    if not while_unserved and stored.waiting is not None:
                        break
        except JobError as error:
            if error.code != ErrorCode.TIMEOUT:
                raise
        return last

    async def send_all(self, jobs: Sequence[Unsent]) -> None:
        """Make jobs and send them together, on one thread."""
        await self.call(self._send_all, jobs)

    def _send_all(self, jobs: Sequence[Unsent]) -> None:
        made = [(unsent, job) for unsent in jobs if (job := self._made(unsent)) is not None]
        answers = self.dispatcher.send_all([job for _, job in made])
        for (unsent, job), answer in zip(made, answers, strict=True):
            unsent.answer = answer
            if unsent.is_given_up and not isinstance(answer, JobError):
                self.dispatcher.try_to_cancel(job.id)

    def _made(self, unsent: Unsent) -> Job | None:
        try:
            unsent.job = unsent.job or self.dispatcher.shared(unsent.make_job(), unsent.scope)
        except Exception as error:  # noqa: BLE001  # of an app's own objects; its caller gets it
            unsent.answer = error
            return None
        return unsent.job
