"""AsyncMany: forecasts of any number of items in an event loop, with a bounded number of them at a time."""

import asyncio
import itertools
import math
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
)
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, TypeVar

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.core.async_handle import AsyncForecastHandle
from kronos_client.core.many import (
    ForecastOutcome,
    checked_max_in_flight,
    not_in_time,
    split_item,
)
from kronos_client.core.retrying import Retries

END: Final = object()

Value = TypeVar("Value")

AsyncSubmit = Callable[[str, Any], Awaitable[AsyncForecastHandle]]
"""Enqueues candles under an id."""


class AsyncMany:
    """The loop of the asynchronous ``forecast_many``.

    One task takes items, and one each submits them and awaits their outcomes. So an item that is long in
    coming keeps back no outcome of another.
    """

    def __init__(
        self,
        submit: AsyncSubmit,
        *,
        max_in_flight: int,
        in_order: bool,
        timeout_s: float | None,
        retry_for_s: float,
        forget: bool,
        job_id_prefix: str | None,
    ) -> None:
        self._submit = submit
        self._in_order = in_order
        self._timeout_s = timeout_s
        self._retry_for_s = retry_for_s
        self._forget = forget
        self._prefix = job_id_prefix
        self._room = asyncio.Semaphore(checked_max_in_flight(max_in_flight))
        self._held: list[asyncio.Task[ForecastOutcome]] = []
        self._news = asyncio.Event()

    async def run(self, items: Iterable[Any] | AsyncIterable[Any]) -> AsyncGenerator[ForecastOutcome, None]:
        """Each item's outcome."""
        taking = self._started(self._take_all(items))
        try:
            while True:
                self._news.clear()
                while (task := self._to_be_given()) is not None:
                    self._held.remove(task)
                    self._room.release()
                    yield task.result()
                if taking.done():
                    taking.result()  # or the error of the items' own source
                    if not self._held:
                        return
                await self._news.wait()
        finally:
            under_way = [taking, *self._held]
            for one in under_way:
                one.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    def _to_be_given(self) -> asyncio.Task[ForecastOutcome] | None:
        waited_for = self._held[:1] if self._in_order else self._held
        return next((task for task in waited_for if task.done()), None)

    def _started(self, work: Coroutine[Any, Any, Value]) -> asyncio.Task[Value]:
        task = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._news.set())
        return task

    async def _take_all(self, items: Iterable[Any] | AsyncIterable[Any]) -> None:
        """Take items as there is room. All by one task: a source may hold a TaskGroup, or a timeout."""
        source = aiter(items) if isinstance(items, AsyncIterable) else iter(items)
        for index in itertools.count():
            await self._room.acquire()
            item = await anext(source, END) if isinstance(source, AsyncIterator) else next(source, END)
            if item is END:
                return
            self._held.append(self._started(self._one(*split_item(item, index, self._prefix))))
            del item  # the next one may be long in coming
            await asyncio.sleep(0)

    async def _one(self, outcome: ForecastOutcome, candles: Any) -> ForecastOutcome:
        """An item's outcome; its job is cancelled where this task is, unless its id is the caller's."""
        if outcome.error is not None:
            return outcome
        retries = Retries(self._retry_for_s)
        handle: AsyncForecastHandle | None = None
        try:
            handle = await self._submit(outcome.job_id, candles)
            del candles  # they are enqueued
            deadline = math.inf if self._timeout_s is None else time.monotonic() + self._timeout_s
            while True:
                remaining_s = None if self._timeout_s is None else max(0.0, deadline - time.monotonic())
                try:
                    return replace(outcome, result=await handle.wait(remaining_s, forget=self._forget))
                except JobError as error:
                    await asyncio.sleep(retries.pause_s(error))
        except JobError as error:
            if error.code != ErrorCode.TIMEOUT or handle is None:
                return replace(outcome, error=error)
            with suppress(JobError):  # it goes on then, and nobody looks for it
                await handle.cancel()
            return replace(outcome, error=not_in_time(self._timeout_s, outcome.job_id))
        except asyncio.CancelledError:
            if handle is not None and self._prefix is None:
                with suppress(JobError):
                    await asyncio.shield(handle.cancel())
            raise
