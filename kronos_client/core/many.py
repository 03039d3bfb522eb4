"""ManyForecasts: forecasts any number of items, each in its own job, a bounded number at a time."""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
)
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Unpack

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import checked_job_id
from kronos_client.core.core import Core, Unsent
from kronos_client.core.dispatcher import Retries
from kronos_client.core.handle import AsyncForecastHandle, cancelled_if_left_async, submitted
from kronos_client.core.job import candles_job
from kronos_client.core.options import DEFAULTS, RETRY_FOR_S, ForecastOptions, ManyOptions, check_options
from kronos_client.core.series import readable
from kronos_client.redis.connection import AWAY

if TYPE_CHECKING:
    from kronos_client.contract.results import ForecastResult

MAX_TOGETHER: Final = 16
"""Items that are sent in one call."""

FATAL_CODES: Final = (
    *AWAY, ErrorCode.NO_GPU_WORKER, ErrorCode.INVALID_DEVICE,
    ErrorCode.MODEL_NOT_ALLOWED, ErrorCode.TIMEZONE_UNKNOWN, ErrorCode.CALENDAR_UNKNOWN,
    ErrorCode.NOT_INSTALLED,
    ErrorCode.CHECKPOINT_INVALID, ErrorCode.CHECKPOINT_MISSING, ErrorCode.CHECKPOINT_MISMATCH,
)  # fmt: skip
"""Errors that every other item would have as well."""

COLLECT_S: Final = 0.02
"""Seconds for which items are collected that their source gives one by one."""
END: Final = object()
"""There is no other item, or no other outcome."""


@dataclass(frozen=True)
class ForecastOutcome:
    """The outcome of one item: a result or an error.

    Attributes:
        index: Counts the items from 0.
        key: The item's own key, or its index.
    """

    index: int
    key: Hashable
    job_id: str
    result: ForecastResult | None = None
    error: JobError | None = None

    def unwrap(self) -> ForecastResult:
        """Return the result, or raise the error."""
        if self.result is None:
            raise self.error or JobError(ErrorCode.INTERNAL, "an outcome without result and error")
        return self.result


class ManyForecasts:
    """The loop of ``forecast_many``, for one event loop.

    While a call sends items, the next ones are collected for the next call. While ``MAX_TOGETHER`` are
    refused, no more are taken. Each item is a task until its outcome is returned.
    """

    def __init__(self, core: Core, **options: Unpack[ManyOptions]) -> None:
        self._core = core
        self._in_order = options.pop("in_order", DEFAULTS["in_order"])
        self._max_in_flight = options.pop("max_in_flight", DEFAULTS["max_in_flight"])
        self._timeout_s = options.pop("timeout_s", None)
        self._retry_for_s = options.pop("retry_for_s", RETRY_FOR_S)
        self._forget = options.pop("forget", DEFAULTS["forget"])
        self._prefix = options.pop("job_id_prefix", None)
        self._options: ForecastOptions = options
        check_options(options, ForecastOptions.__annotations__)
        self._tasks: list[asyncio.Task[ForecastOutcome]] = []
        self._not_accepted: set[asyncio.Task[Any] | None] = set()
        self._num_taken = 0
        self._unsent: list[Unsent] = []
        self._sending: asyncio.Task[None] | None = None
        self._is_over = False
        self._error: BaseException | None = None
        self._news = asyncio.Event()

    async def run(self, items: Iterable[Any] | AsyncIterable[Any]) -> AsyncGenerator[ForecastOutcome, None]:
        """Yield each item's outcome. Waiting for the next item does not delay outcomes that are ready."""
        check_items(items)
        # One task takes all items: their source may hold a TaskGroup or a timeout.
        taking = asyncio.create_task(self._take_all(items))
        taking.add_done_callback(self._end_taking)
        try:
            while (outcome := await self.step()) is not END:
                yield outcome
        finally:
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
            await self.leave()

    async def _take_all(self, items: Iterable[Any] | AsyncIterable[Any]) -> None:
        source = aiter(items) if isinstance(items, AsyncIterable) else iter(items)
        while True:
            while self._room() <= 0:
                self._news.clear()
                await self._news.wait()
            item = await anext(source, END) if isinstance(source, AsyncIterator) else next(source, END)
            if item is END:
                return
            self._take(item)
            del item  # frees its memory while the next one is awaited

    def _end_taking(self, taking: asyncio.Task[None]) -> None:
        self._is_over = True
        self._error = None if taking.cancelled() else taking.exception()
        self._news.set()

    async def step(self, items: list[Any] | None = None, *, is_over: bool = False) -> Any:
        """Take all items out of the list; then return an outcome, or the room for further items.

        END is returned after the last outcome, if the input ``is_over``. ``run`` takes its items itself.
        """
        if items is not None:
            self._is_over = is_over
            while items:
                self._take(items.pop(0))
        while True:
            self._news.clear()
            if items is not None and not self._is_over and (room := self._room()) > 0:
                return room
            for task in self._tasks[:1] if self._in_order else self._tasks:
                if task.done():
                    self._tasks.remove(task)
                    self._news.set()  # there is room
                    return task.result()
            if self._error is not None:
                raise self._error
            if self._is_over and not self._tasks:
                return END
            await self._news.wait()

    async def leave(self) -> None:
        """Cancel the jobs under way, unless their ids are the caller's."""
        self._core.on_close.discard(self.leave)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _room(self) -> int:
        """The number of items that may be taken now."""
        return min(self._max_in_flight - len(self._tasks), MAX_TOGETHER - len(self._not_accepted))

    def _take(self, item: Any) -> None:
        self._core.on_close.add(self.leave)
        task = asyncio.create_task(self._forecast(*split_item(item, self._num_taken, self._prefix)))
        task.add_done_callback(self._accept)
        self._tasks.append(task)
        self._not_accepted.add(task)
        self._num_taken += 1

    def _accept(self, task: asyncio.Task[Any] | None) -> None:
        self._not_accepted.discard(task)
        self._news.set()

    async def _forecast(
        self, outcome: ForecastOutcome, candles: Any, own: ForecastOptions
    ) -> ForecastOutcome:
        if outcome.error is not None:
            return outcome
        options: ForecastOptions = {**self._options, **own}
        make_job = partial(candles_job, candles, options, outcome.job_id, self._core.settings)
        may_stay = self._prefix is not None  # its id is the caller's
        scope = None if may_stay or self._forget else ""  # others would miss a deleted result
        try:
            handle: AsyncForecastHandle = await submitted(
                self._core, make_job, self._retry_for_s, may_stay=may_stay, scope=scope, send=self._send
            )
            del candles, own, options, make_job
            self._accept(asyncio.current_task())
            outcome = replace(outcome, job_id=handle.id)
            async with cancelled_if_left_async(handle, self._timeout_s, may_stay=may_stay):
                return replace(outcome, result=await self._result(handle))
        except JobError as error:
            return replace(outcome, error=error)

    async def _send(self, job: Unsent) -> None:
        """Send a job with those that are collected until the last call ends."""
        if not self._unsent:
            self._sending = asyncio.create_task(self._send_all(self._sending))
        self._unsent.append(job)
        assert self._sending is not None
        await asyncio.shield(self._sending)

    async def _send_all(self, last_call: asyncio.Task[None] | None) -> None:
        if last_call is not None:
            await asyncio.wait([last_call])
        unsent, self._unsent = [job for job in self._unsent if not job.is_given_up], []
        await self._core.send_all(unsent)
        unsent.clear()  # the thread may hold the list, and with it the candles, a moment longer

    async def _result(self, handle: AsyncForecastHandle) -> ForecastResult:
        """The job's result within its time, also after Redis was unreachable for a while."""
        retries = Retries(self._retry_for_s)
        ends_at = math.inf if self._timeout_s is None else time.monotonic() + self._timeout_s
        while True:
            timeout_s = None if self._timeout_s is None else max(0.0, ends_at - time.monotonic())
            try:
                return await handle.wait(timeout_s, forget=self._forget)
            except JobError as error:
                await asyncio.sleep(retries.pause_s(error))


def check_items(items: object) -> None:
    """Raises JobError BAD_TYPE for a mapping, which would give its keys."""
    if isinstance(items, Mapping):
        text = "items must not be a mapping: give its items(), or a list of it if it has the columns of one"
        raise JobError(ErrorCode.BAD_TYPE, text, "items")


def collect(source: Iterator[Any], room: int) -> tuple[list[Any], bool]:
    """As many items as there is room for, fewer if they take long to come; and whether there are no more."""
    items, ends_at = list[Any](), time.monotonic() + COLLECT_S
    while len(items) < room and (not items or time.monotonic() < ends_at):
        if (item := next(source, END)) is END:
            return items, True
        items.append(item)
    return items, False


def split_item(item: Any, index: int, prefix: str | None) -> tuple[ForecastOutcome, Any, ForecastOptions]:
    """An item's outcome so far, its candles, and its own options.

    The outcome has an error if the item cannot be submitted.
    """
    is_keyed = isinstance(item, tuple) and len(item) in (2, 3)
    key, candles, *more = item if is_keyed else (index, item)
    options: Any = more[0] if more else {}
    begun = ForecastOutcome(index, index, str(uuid.uuid4()))
    try:
        with readable("an item's key", "key"):
            if not _is_key(key):
                message = (
                    f"a tuple must be (key, candles) or (key, candles, options), and {type(key).__name__} "
                    "cannot be a key: give several series of one job as a list"
                )
                raise JobError(ErrorCode.BAD_TYPE, message, "key")
            begun = replace(begun, key=key)
            if prefix is not None:
                begun = replace(begun, job_id=checked_job_id(f"{prefix}-{key}"))
        with readable("an item's options", "options"):
            check_options(options, ForecastOptions.__annotations__)
    except JobError as error:
        return replace(begun, error=error), None, {}
    return begun, candles, options


def _is_key(key: object) -> bool:
    """Whether it may be a mapping's key; candles may not."""
    try:
        hash(key)
    except TypeError:
        return False
    return not isinstance(key, Mapping) and not hasattr(key, "columns")
