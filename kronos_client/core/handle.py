"""JobHandle: an enqueued job, as its submitter sees it, for callers without an event loop."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Generic, TypeAlias

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.core.kinds import BacktestState, FinetuneState, JobKind, JobState, Result, State
from kronos_client.core.loop_thread import LoopClosed, LoopThread
from kronos_client.core.stored import NOTHING

if TYPE_CHECKING:
    from kronos_client.contract.backtest_results import BacktestResult
    from kronos_client.contract.finetune_results import FinetuneResult
    from kronos_client.contract.results import ForecastResult
    from kronos_client.core.async_handle import AsyncHandle
    from kronos_client.core.core import Core
    from kronos_client.core.dispatcher import Dispatcher


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
        from kronos_client.core.async_handle import AsyncHandle  # most of what only waiting needs

        return AsyncHandle(core, self._kind, self.id, self.queue)

    def state(self) -> State:
        """The job's state now."""
        return self._thread.run(lambda core: self._on(core).state())

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
        if on_progress is None:
            return self._thread.run(lambda core: self._on(core).wait(timeout_s, forget=forget))
        stored, state_of = NOTHING, self._kind.state_of
        states = self._thread.iterate(lambda core: core.events.states(self.id, timeout_s, state_of))
        with suppress(LoopClosed), closing(states):
            for stored in states:
                on_progress(state_of(stored))
        if not stored.has_ended:
            from kronos_client.core.async_handle import closed

            raise closed(self.id)
        return self._thread.run(lambda core: self._on(core)._result(stored, forget=forget))

    def peek(self) -> Result | None:
        """The result if it is there already, None if it is still to come.

        Raises:
            JobError: The job's own; RESULT_EXPIRED or LOST if there is nothing to wait for.
        """
        return self._thread.run(lambda core: self._on(core).peek())

    def check(self) -> None:
        """Raises JobError RESULT_EXPIRED or LOST if there is nothing to wait for."""
        self._thread.run(lambda core: self._on(core).check())

    def cancel(self) -> None:
        """Request that the job ends as CANCELLED. A job that has ended stays as it is."""
        self._thread.run(lambda core: self._on(core).cancel())

    def forget(self) -> bool:
        """Delete the result from Redis; False if there is none (yet), or only an error.

        The job stays done. Until the result would have expired, reading it or submitting the job again under
        its id gives RESULT_EXPIRED.
        """
        return self._thread.run(lambda core: self._on(core).forget())


ForecastHandle: TypeAlias = JobHandle[JobState, "ForecastResult"]
FinetuneHandle: TypeAlias = JobHandle[FinetuneState, "FinetuneResult"]
BacktestHandle: TypeAlias = JobHandle[BacktestState, "BacktestResult"]


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
        raise dispatcher.not_in_time(job_id, timeout_s) from None
    except (KeyboardInterrupt, SystemExit):
        if not may_stay:
            dispatcher.try_to_cancel(job_id)
        raise
