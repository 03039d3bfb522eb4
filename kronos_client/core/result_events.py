"""ResultEvents: waits for the states of any number of jobs.

Workers publish each state of a job. In case a published state was missed, the states of all awaited jobs are
also read every few seconds.
"""

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from kronos_client.contract.errors import JobError
from kronos_client.contract.names import is_job_id, is_shared
from kronos_client.core.dispatcher import Dispatcher, timed_out
from kronos_client.core.result_store import ResultStore
from kronos_client.core.stored import LOST, Stored
from kronos_client.redis.connection import NOT_REACHED, is_refused, reachable, unanswered, unreachable
from kronos_client.redis.routing import why_waiting

LOOK_INTERVAL_S: Final = 2.0
"""Seconds between reads of all awaited jobs, in case a published state was missed."""
FIRST_LOOK_S: Final = 2.0
"""Seconds for the first read of a job, even if its caller's timeout is shorter."""
AWAY_FOR_S: Final = 20.0
"""Seconds that Redis may be unreachable while a caller waits."""
JOBS_AT_ONCE: Final = 100

T = TypeVar("T")

log = logging.getLogger(__name__)


class _Waiter:
    """One caller that waits for a job. Times are ``time.monotonic``'s."""

    def __init__(self) -> None:
        self.stored: Stored | None = None
        self.error: JobError | None = None
        self.reached_at = time.monotonic()
        self.published_at = -math.inf
        self.changed = asyncio.Event()

    def take(self, stored: Stored) -> None:
        if self.stored is None or not self.stored.has_ended:  # the first outcome stands
            self.stored = stored
            self.changed.set()


class ResultEvents:
    """Lives on one event loop, from its first use to ``close``.

    Args:
        workers: Asked for why a job waits. Without it nobody says why.
        away_for_s: Seconds that Redis may be unreachable while a caller waits.
    """

    def __init__(
        self, store: ResultStore, workers: Dispatcher | None = None, away_for_s: float = AWAY_FOR_S
    ) -> None:
        self._store = store
        self._workers = workers
        self._away_for_s = away_for_s
        self._reasons: dict[str, str | None] = {}
        self._waiters: dict[str, set[_Waiter]] = {}
        self._begun: list[str] = []
        self._looker: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self.is_released = False

    @property
    def num_jobs(self) -> int:
        """The number of jobs that callers wait for now."""
        return len(self._waiters)

    def release(self) -> None:
        """End all waiting, now and from now on: the process ends, or the client is closed."""
        self.is_released = True
        for waiters in self._waiters.values():
            for waiter in waiters:
                waiter.changed.set()

    async def close(self) -> None:
        """End all waiting, and close the connections."""
        self.release()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._store.close()

    async def read(self, job_id: str) -> Stored:
        """Read a job's stored state.

        Raises:
            JobError: BROKER_UNREACHABLE; LOST if it cannot be a job's id.
        """
        _check_id(job_id)
        with reachable(job_id):
            # In a task of its own: cancelled while it sends, it would close the connection of all.
            (stored,) = await asyncio.shield(self._start(self._store.read([job_id])))
        return (await self.explained([stored]))[0]

    async def explained(self, found: list[Stored]) -> list[Stored]:
        """The states, with why jobs wait that no worker can take. Each reason is logged when it begins."""
        queues = {stored.queue for stored in found if stored.queue is not None}
        if not queues or self._workers is None:
            return found
        try:
            workers = self._workers.fresh_workers()
            if workers is None:
                workers = await asyncio.to_thread(self._workers.known_workers)
        except JobError:  # Redis does not answer, which the next read reports
            return found
        for queue in queues:
            reason, before = why_waiting(queue, workers), self._reasons.get(queue)
            self._reasons[queue] = reason
            if reason is not None and reason != before:
                log.warning("%s", reason)
        return [stored._replace(waiting=self._reasons.get(stored.queue or "")) for stored in found]

    async def forget(self, job_id: str, *, has_result: bool = False) -> bool:
        """Delete a result, as ``ResultStore.forget``, unless others share it.

        Raises:
            JobError: BROKER_UNREACHABLE.
        """
        if is_shared(job_id):
            return False
        with reachable(job_id):
            return await asyncio.shield(self._start(self._store.forget(job_id, has_result=has_result)))

    async def states(
        self,
        job_id: str,
        timeout_s: float | None = None,
        seen_as: Callable[[Stored], object] = lambda stored: stored,
    ) -> AsyncGenerator[Stored, None]:
        """Yield the job's present state, then each new one, up to the outcome or a call of ``release``.

        A state that is ``seen_as`` the one before it is not new.

        Raises:
            JobError: TIMEOUT if the job has not ended in time; LOST or RESULT_EXPIRED if there is nothing to
                wait for; BROKER_UNREACHABLE if Redis was unreachable for too long.
        """
        _check_id(job_id)
        begun_at, waiter, last = time.monotonic(), _Waiter(), object()
        ends_at = math.inf if timeout_s is None else begun_at + timeout_s
        self._begin_waiting(job_id, waiter)
        try:
            while not waiter.error:
                waiter.changed.clear()
                if (stored := waiter.stored) is not None:
                    stored.raise_absence()
                    if (seen := seen_as(stored)) != last:
                        last = seen
                        yield stored
                        if stored.has_ended:
                            return
                        continue  # a newer one may have come meanwhile
                if self.is_released:
                    return
                limit = max(ends_at, begun_at + FIRST_LOOK_S) if stored is None else ends_at
                remaining_s = limit - time.monotonic()
                if remaining_s <= 0:
                    if stored is None:
                        raise unanswered(job_id)
                    raise timed_out(timeout_s, "goes on, wait again or cancel it", stored.waiting)
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if timeout_s is None else remaining_s):
                        await waiter.changed.wait()
            raise waiter.error
        finally:
            self._end_waiting(job_id, waiter)

    def _begin_waiting(self, job_id: str, waiter: _Waiter) -> None:
        self._waiters.setdefault(job_id, set()).add(waiter)
        self._store.start(self._on_state)
        self._store.awaited.add(job_id)
        self._begun.append(job_id)
        if len(self._begun) == 1:
            self._start(self._begin())

    def _end_waiting(self, job_id: str, waiter: _Waiter) -> None:
        self._waiters[job_id].discard(waiter)
        if not self._waiters[job_id]:
            del self._waiters[job_id]
            self._store.awaited.discard(job_id)

    def _start(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._end)
        return task

    def _end(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieves it; else asyncio logs that nobody did

    async def _begin(self) -> None:
        """Subscribe to all jobs for which waiting began in this turn of the loop, and read them."""
        job_ids, self._begun = self._begun, []
        await self._look(list(dict.fromkeys(job_ids)))
        if self._looker is None or self._looker.done():
            self._looker = self._start(self._look_often())

    def _on_state(self, job_id: str, stored: Stored) -> None:
        for waiter in self._waiters.get(job_id, ()):
            waiter.published_at = time.monotonic()
            waiter.take(stored)

    async def _look_often(self) -> None:
        is_idle = False
        while not is_idle or self._waiters:
            await self._store.pause(LOOK_INTERVAL_S)
            is_idle = not self._waiters
            await self._look(list(self._waiters))

    async def _look(self, job_ids: Sequence[str]) -> None:
        for start in range(0, max(1, len(job_ids)), JOBS_AT_ONCE):
            await self._look_at(job_ids[start : start + JOBS_AT_ONCE])

    async def _look_at(self, job_ids: Sequence[str]) -> None:
        """Read jobs. It subscribes and unsubscribes too, also if there are none."""
        read_at = time.monotonic()
        try:
            found = await self.explained(await self._store.read(job_ids))
        except NOT_REACHED as error:
            for job_id in job_ids:
                for waiter in self._waiters.get(job_id, ()):
                    if is_refused(error) or time.monotonic() > waiter.reached_at + self._away_for_s:
                        waiter.error = unreachable(error, job_id)
                        waiter.error.__cause__ = error
                        waiter.changed.set()
            return
        for job_id, stored in zip(job_ids, found, strict=True):
            for waiter in self._waiters.get(job_id, ()):
                waiter.reached_at = time.monotonic()
                if stored.has_ended or waiter.published_at < read_at:
                    waiter.take(stored)


def _check_id(job_id: str) -> None:
    """Raises JobError LOST for an invalid id, under which nothing can be stored."""
    if not is_job_id(job_id):
        raise JobError(*LOST.args)
