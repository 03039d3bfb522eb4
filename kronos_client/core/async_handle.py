"""AsyncHandle: an enqueued job, from its submitter's side, in an event loop. No torch."""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from typing import Final, Generic

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.finetune_results import FinetuneResult
from kronos_client.contract.results import ForecastResult
from kronos_client.core.async_result_events import AsyncEndings
from kronos_client.core.handle import (
    LOOK_INTERVAL_S,
    PROGRESS_INTERVAL_S,
    FinetuneState,
    JobHandle,
    JobState,
    Result,
    State,
    timed_out,
)
from kronos_client.core.result_store import reachable

AWAY_FOR_S: Final = 20.0
"""How long Redis may be away while a job is waited for, as long as the other client waits for it."""


class AsyncHandle(Generic[State, Result]):
    """An enqueued job, for asyncio; see ``JobHandle``. What is not waiting takes a thread, for an instant."""

    def __init__(self, handle: JobHandle[State, Result], endings: AsyncEndings) -> None:
        self.id = handle.id
        self.queue = handle.queue
        self._handle = handle
        self._endings = endings

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id!r}, queue={self.queue!r})"

    async def state(self) -> State:
        """Where the job is now."""
        return await asyncio.to_thread(self._handle.state)

    async def peek(self) -> Result | None:
        """The result where it is there already, None where it is still to come; see ``JobHandle.peek``."""
        return await asyncio.to_thread(self._handle.peek)

    async def check(self) -> None:
        """Raises JobError RESULT_EXPIRED or LOST where there is nothing to wait for."""
        await asyncio.to_thread(self._handle.check)

    async def cancel(self) -> None:
        """Ask for the job to end as CANCELLED; a job that is done already stays as it is."""
        await asyncio.to_thread(self._handle.cancel)

    async def forget(self) -> bool:
        """Delete the result from Redis; False where there is none (yet), or only an error."""
        return await asyncio.to_thread(self._handle.forget)

    async def wait(
        self,
        timeout_s: float | None = None,
        *,
        on_progress: Callable[[State], object] | None = None,
        forget: bool = False,
    ) -> Result:
        """The result, once it is there; ``on_progress`` is called with each new state, the last one included.

        Raises JobError as ``JobHandle.wait`` does.
        """
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        if on_progress is not None:
            told: State | None = None
            async with aclosing(self._states(deadline)) as states:
                async for state in states:
                    if state != told:
                        on_progress(told := state)
        async with self._endings.of(self.id) as news:
            reached_at = time.monotonic()
            while True:
                news.clear()
                try:
                    result = await self._look()
                    reached_at = time.monotonic()
                except JobError as error:
                    is_away = error.code == ErrorCode.BROKER_UNREACHABLE
                    if not is_away or time.monotonic() > reached_at + AWAY_FOR_S:
                        raise
                    result = None
                if result is not None:
                    break
                remaining_s = deadline - time.monotonic()
                if remaining_s <= 0:
                    raise timed_out(timeout_s)
                await _woken(news, min(LOOK_INTERVAL_S, remaining_s))
        if forget:
            with suppress(JobError):  # what cannot be deleted now expires by itself
                await self.forget()
        return result

    def progress(self) -> AsyncGenerator[State, None]:
        """The job's state now and about once a second, and at once when it ends; the last one has ended.

        Raises JobError: RESULT_EXPIRED or LOST where there is nothing to wait for.
        """
        return self._states(math.inf)

    async def _look(self) -> Result | None:
        """The result where it is there; raises JobError as ``JobHandle.peek``."""
        with reachable(self.id):
            if not await self._endings.may_have_ended(self.id):
                return None
        return await self.peek()

    async def _states(self, deadline: float) -> AsyncGenerator[State, None]:
        async with self._endings.of(self.id) as news:
            while True:
                news.clear()
                await self.check()
                yield (state := await self.state())
                remaining_s = deadline - time.monotonic()
                if state.has_ended or remaining_s <= 0:
                    return
                await _woken(news, min(PROGRESS_INTERVAL_S, remaining_s))


AsyncForecastHandle = AsyncHandle[JobState, ForecastResult]
AsyncFinetuneHandle = AsyncHandle[FinetuneState, FinetuneResult]


async def _woken(news: asyncio.Event, timeout_s: float) -> None:
    """Once there is news, or after this time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await news.wait()
