"""An enqueued job: AsyncHandle in an event loop, JobHandle without one, which uses that of a LoopThread."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import CancelledError
from contextlib import aclosing, asynccontextmanager, closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.core.job import Job
from kronos_client.core.kinds import BacktestState, FinetuneState, JobKind, JobState, Result, State
from kronos_client.core.options import check_waiting
from kronos_client.core.stored import NOTHING, Stored
from kronos_client.otel.spans import waiting

if TYPE_CHECKING:
    from kronos_client.contract.backtest import BacktestResult
    from kronos_client.contract.finetune import FinetuneResult
    from kronos_client.contract.results import ForecastResult
    from kronos_client.core.core import Core
    from kronos_client.core.dispatcher import Dispatcher


CLOSE_S: Final = 5.0
"""Seconds to wait for the thread to end."""

CLOSED: Final = "the client was closed: make a new one"

T = TypeVar("T")

_OF_THE_PARENT: Final[list[object]] = []
"""Never freed: freeing them in a forked child would close the parent's connections too."""


class LoopClosed(RuntimeError):
    """The client was closed by another thread."""

    def __init__(self) -> None:
        super().__init__("the client was closed by another thread")


class LoopThread:
    """A core on its own thread. It starts on first use, and again in a forked process, never after ``close``.

    May be used by several threads at once.
    """

    def __init__(self, make_core: Callable[[], Core]) -> None:
        self._make_core = make_core
        self._lock = threading.Lock()
        self._running: RunningLoop | None = None
        self._is_closed = False

    @property
    def core(self) -> Core:
        """The core, for use on its own thread."""
        return self.start().core

    def run(self, work: Callable[[Core], Coroutine[Any, Any, T]]) -> T:
        """Run ``work`` on the loop and return its value. An interrupt of this thread cancels it."""
        running = self.start()
        return running.run(work(running.core))

    def iterate(self, values: Callable[[Core], AsyncGenerator[T, None]]) -> Generator[T, None, None]:
        """Run a generator on the loop, and yield its values."""
        running = self.start()
        generator = values(running.core)
        try:
            with suppress(StopAsyncIteration):
                while True:
                    yield running.run(generator.__anext__())
        finally:
            # RuntimeError: its last step was interrupted, or the loop is closed; then it ends by itself.
            with suppress(RuntimeError):
                running.run(generator.aclose())

    def close(self) -> None:
        """Close the core's connections, and end the thread."""
        with self._lock:
            running, self._running, self._is_closed = self._running, None, True
        if running is not None:
            running.stop()

    def check_open(self) -> None:
        """Raises RuntimeError once it was closed."""
        if self._is_closed:
            raise RuntimeError(CLOSED)

    def start(self) -> RunningLoop:
        """The running loop, started if there is none: for calls that belong together."""
        with self._lock:
            self.check_open()
            running = self._running
            if running is None or running.pid != os.getpid():
                if running is not None:
                    _OF_THE_PARENT.append(running)
                self._running = running = RunningLoop(self._make_core())
                weakref.finalize(self, running.stop)  # if the client is never closed
            return running


class RunningLoop:
    """A core on its thread, in one process."""

    def __init__(self, core: Core) -> None:
        self.core, self.pid = core, os.getpid()
        self._lock, self._is_stopped = threading.RLock(), False
        self._is_ready = threading.Event()
        args = (self._main(),)
        self._thread = threading.Thread(target=asyncio.run, args=args, name="kronos-client", daemon=True)
        self._thread.start()
        self._is_ready.wait()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        with self._lock:
            if self._is_stopped:
                work.close()
                raise LoopClosed
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:  # with all that is left when the loop ends
            raise LoopClosed from None
        finally:
            future.cancel()  # has an effect only if this thread was interrupted

    def stop(self) -> None:
        if self.pid != os.getpid() or not self._thread.is_alive():
            return
        with self._lock:  # work that is sent to a loop after its end would never be done
            self._is_stopped = True
            with suppress(RuntimeError):  # it ended meanwhile
                self._loop.call_soon_threadsafe(self._is_over.set)
        if threading.current_thread() is not self._thread:  # garbage collection may run there
            self._thread.join(CLOSE_S)

    async def _main(self) -> None:
        self._loop, self._is_over = asyncio.get_running_loop(), asyncio.Event()
        self._is_ready.set()
        await self._is_over.wait()
        await self.core.close()


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
        check_waiting(timeout_s=timeout_s, on_progress=on_progress, forget=forget)
        stored, states = NOTHING, self._core.events.states(self.id, timeout_s, self._kind.state_of)
        with waiting(self.id):
            async with aclosing(states):
                async for stored in states:
                    if on_progress is not None:
                        on_progress(self._kind.state_of(stored))
            return await self._result(stored, forget=forget)

    async def _result(self, stored: Stored, *, forget: bool) -> Result:
        """The result in the last state that was read. Without one, the client was closed: RuntimeError."""
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
        # Without a job it would leave an outcome for the next one with this id.
        absence = (await self._core.events.read(self.id)).absence
        if absence is not None and absence.code == ErrorCode.LOST:
            raise JobError(*absence.args)
        await self._core.call(self._core.dispatcher.cancel, self.id)

    async def forget(self) -> bool:
        return await self._core.events.forget(self.id)


class JobHandle(Generic[State, Result]):
    """An enqueued job. ``queue`` is None if another client put it there."""

    def __init__(
        self, thread: LoopThread, kind: JobKind[State, Result], job_id: str, queue: str | None
    ) -> None:
        self._thread = thread
        self._kind = kind
        self.id = job_id
        self.queue = queue

    def __repr__(self) -> str:
        return f"{self._kind.name.capitalize()}Handle(id={self.id!r}, queue={self.queue!r})"

    def _on(self, core: Core) -> AsyncHandle[State, Result]:
        return AsyncHandle(core, self._kind, self.id, self.queue)

    def _run(self, call: Callable[[AsyncHandle[State, Result]], Coroutine[Any, Any, T]]) -> T:
        return self._thread.run(lambda core: call(self._on(core)))

    def state(self) -> State:
        """The job's state now."""
        return self._run(AsyncHandle.state)

    def progress(self) -> Generator[State, None, None]:
        """Yield the job's present state, then each new one. The last one has the outcome.

        Raises:
            JobError: RESULT_EXPIRED or LOST if there is nothing to wait for.
        """
        return self._thread.iterate(lambda core: self._on(core).progress())

    def wait(
        self,
        timeout_s: float | None = None,
        *,
        on_progress: Callable[[State], object] | None = None,
        forget: bool = False,
    ) -> Result:
        """Wait for the result.

        Args:
            timeout_s: Seconds to wait; None for no limit.
            on_progress: Called with each new state, including the last, on this thread. If it raises, the
                waiting ends, and the job goes on.
            forget: Delete the result after reading it.

        Raises:
            JobError: The job's own; TIMEOUT if it has not ended in time (it goes on; wait again);
                RESULT_EXPIRED or LOST if there is nothing to wait for, or no longer.
        """
        check_waiting(timeout_s=timeout_s, on_progress=on_progress, forget=forget)
        if on_progress is None:
            return self._run(lambda handle: handle.wait(timeout_s, forget=forget))
        stored, state_of = NOTHING, self._kind.state_of
        states = self._thread.iterate(lambda core: core.events.states(self.id, timeout_s, state_of))
        with waiting(self.id), suppress(LoopClosed), closing(states):
            for stored in states:
                on_progress(state_of(stored))
        if not stored.has_ended:
            raise closed(self.id)
        return self._run(lambda handle: handle._result(stored, forget=forget))

    def peek(self) -> Result | None:
        """The result if it is there already, None if it is still to come.

        Raises:
            JobError: The job's own; RESULT_EXPIRED or LOST if there is nothing to wait for.
        """
        return self._run(AsyncHandle.peek)

    def check(self) -> None:
        """Raises JobError RESULT_EXPIRED or LOST if there is nothing to wait for."""
        self._run(AsyncHandle.check)

    def cancel(self) -> None:
        """Request that the job ends as CANCELLED. A job that has ended stays as it is.

        Raises:
            JobError: LOST if Redis has no such job.
        """
        self._run(AsyncHandle.cancel)

    def forget(self) -> bool:
        """Delete the result from Redis; False if there is none (yet), or only an error.

        The job stays done. Until the result would have expired, reading it or submitting the job again under
        its id gives RESULT_EXPIRED.
        """
        return self._run(AsyncHandle.forget)


AsyncForecastHandle: TypeAlias = AsyncHandle[JobState, "ForecastResult"]
AsyncFinetuneHandle: TypeAlias = AsyncHandle[FinetuneState, "FinetuneResult"]
AsyncBacktestHandle: TypeAlias = AsyncHandle[BacktestState, "BacktestResult"]
ForecastHandle: TypeAlias = JobHandle[JobState, "ForecastResult"]
FinetuneHandle: TypeAlias = JobHandle[FinetuneState, "FinetuneResult"]
BacktestHandle: TypeAlias = JobHandle[BacktestState, "BacktestResult"]


def closed(job_id: str) -> RuntimeError:
    """The error for a caller that waited for a job when its client was closed."""
    return RuntimeError(f"the client was closed while it waited for the job {job_id}")


@asynccontextmanager
async def cancelled_if_left_async(
    handle: AsyncHandle[Any, Any], timeout_s: float | None, *, may_stay: bool = False
) -> AsyncIterator[None]:
    """Cancel the job if waiting ends as TIMEOUT, or with this asyncio task unless it ``may_stay``."""
    call, dispatcher = handle._core.call, handle._core.dispatcher
    try:
        yield
    except JobError as error:
        if error.code != ErrorCode.TIMEOUT:
            raise
        raise await call(dispatcher.not_in_time, handle.id, timeout_s, error) from None
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


@contextmanager
def cancelled_if_left(
    dispatcher: Dispatcher, job_id: str, timeout_s: float | None = None, *, may_stay: bool = False
) -> Iterator[None]:
    """Cancel the job if waiting ends as TIMEOUT, or by an interrupt of this thread unless it ``may_stay``."""
    try:
        yield
    except JobError as error:
        if error.code != ErrorCode.TIMEOUT:
            raise
        raise dispatcher.not_in_time(job_id, timeout_s, error) from None
    except (KeyboardInterrupt, SystemExit):
        if not may_stay:
            dispatcher.try_to_cancel(job_id)
        raise
