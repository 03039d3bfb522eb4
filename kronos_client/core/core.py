"""Core: sends and awaits jobs in one event loop, for all clients and the HTTP API."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from kronos_client.contract.errors import JobError
from kronos_client.core.dispatcher import Dispatcher
from kronos_client.core.job import Job
from kronos_client.core.result_events import AWAY_FOR_S, ResultEvents
from kronos_client.core.result_store import ResultStore
from kronos_client.core.retrying import Retries
from kronos_client.settings import ClientSettings

Call = Callable[..., Awaitable[Any]]
"""Runs a blocking function with its arguments on a thread, as ``asyncio.to_thread``."""


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
        self.events = ResultEvents(store, away_for_s)
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
    ) -> tuple[Job, str]:
        """Make a job and send it on a thread, with retries; returns the job and its queue.

        If this task is cancelled meanwhile, the job is cancelled as soon as it is enqueued, unless it
        ``may_stay`` because the caller has its id.

        Args:
            scope: As ``Dispatcher.shared`` takes it.
        """
        retries = Retries(retry_for_s)
        is_given_up = threading.Event()
        made: list[Job] = []
        sent: list[Job] = []

        def send_once() -> str:
            if not made:
                made.append(self.dispatcher.shared(make_job(), scope))
            queue = self.dispatcher.send(made[0])
            sent.extend(made)
            if is_given_up.is_set():
                self.dispatcher.try_to_cancel(made[0].id)
            return queue

        try:
            while True:
                try:
                    queue = await self.call(send_once)
                    return made[0], queue
                except JobError as error:
                    sent.extend(made)  # it may have been: ENQUEUE_UNCERTAIN
                    await asyncio.sleep(retries.pause_s(error))
        except asyncio.CancelledError:
            if not may_stay:
                is_given_up.set()
                if sent:  # else the thread sees the flag
                    cancel = self.dispatcher.try_to_cancel
                    asyncio.get_running_loop().run_in_executor(None, cancel, sent[0].id)
            raise
