"""AsyncHandle: an enqueued job, as its submitter sees it, in an event loop."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Generic, TypeAlias

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.core.core import Core
from kronos_client.core.job import Job
from kronos_client.core.kinds import BacktestState, FinetuneState, JobKind, JobState, Result, State
from kronos_client.core.stored import NOTHING, Stored

if TYPE_CHECKING:
    from kronos_client.contract.backtest import BacktestResult
    from kronos_client.contract.finetune import FinetuneResult
    from kronos_client.contract.results import ForecastResult


class AsyncHandle(Generic[State, Result]):
    """An enqueued job, with the methods of ``JobHandle`` to be awaited."""

    def __init__(self, core: Core, kind: JobKind[State, Result], job_id: str, queue: str | None) -> None:
        self._core = core
        self._kind = kind
        self.id = job_id
        self.queue = queue

    def __repr__(self) -> str:
        return f"Async{self._kind.name.capitalize()}Handle(id={self.id!r}, queue={self.queue!r})"

    async def state(self) -> State:
        return self._kind.state_of(await self._core.events.read(self.id))

    async def progress(self) -> AsyncGenerator[State, None]:
        async with aclosing(self._core.events.states(self.id, None, self._kind.state_of)) as states:
            async for stored in states:
                yield self._kind.state_of(stored)

    async def wait(
        self,
        timeout_s: float | None = None,
        *,
        on_progress: Callable[[State], object] | None = None,
        forget: bool = False,
    ) -> Result:
        stored = NOTHING
        async with aclosing(self._core.events.states(self.id, timeout_s, self._kind.state_of)) as states:
            async for stored in states:
                if on_progress is not None:
                    on_progress(self._kind.state_of(stored))
        return await self._result(stored, forget=forget)

    async def _result(self, stored: Stored, *, forget: bool) -> Result:
        """The result in the last state that was read, which is no outcome if the client was closed."""
        result = self._kind.result_of(stored)
        if result is None:
            raise closed(self.id)
        if forget:
            with suppress(JobError):  # a result that cannot be deleted now expires by itself
                await self._core.events.forget(self.id, has_result=True)
        return result

    async def peek(self) -> Result | None:
        return self._kind.result_of(await self._core.events.read(self.id))

    async def check(self) -> None:
        (await self._core.events.read(self.id)).raise_absence()

    async def cancel(self) -> None:
        await self._core.call(self._core.dispatcher.cancel, self.id)

    async def forget(self) -> bool:
        return await self._core.events.forget(self.id)


AsyncForecastHandle: TypeAlias = AsyncHandle[JobState, "ForecastResult"]
AsyncFinetuneHandle: TypeAlias = AsyncHandle[FinetuneState, "FinetuneResult"]
AsyncBacktestHandle: TypeAlias = AsyncHandle[BacktestState, "BacktestResult"]


def closed(job_id: str) -> RuntimeError:
    """What a caller gets that waited for a job as its client was closed."""
    return RuntimeError(f"the client was closed while it waited for the job {job_id}")


@asynccontextmanager
async def cancelled_if_left(
    handle: AsyncHandle[Any, Any], timeout_s: float | None, *, may_stay: bool = False
) -> AsyncIterator[None]:
    """Cancel the job if waiting ends as TIMEOUT, or with this asyncio task unless it ``may_stay``."""
    call, dispatcher = handle._core.call, handle._core.dispatcher
    try:
        yield
    except JobError as error:
        if error.code != ErrorCode.TIMEOUT:
            raise
        raise await call(dispatcher.not_in_time, handle.id, timeout_s) from None
    except asyncio.CancelledError:
        if not may_stay:
            await asyncio.shield(call(dispatcher.try_to_cancel, handle.id))
        raise


async def submitted(
    core: Core, make_job: Callable[[], Job], retry_for_s: float, **how: Any
) -> AsyncHandle[Any, Any]:
    """Make and send a job as ``Core.send``; returns its handle."""
    job, queue = await core.send(make_job, retry_for_s, **how)
    return AsyncHandle(core, job.kind, job.id, queue)
