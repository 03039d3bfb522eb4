"""AsyncFeed: a feed for asyncio. Each call runs on a thread."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from kronos_client.contract.feed import FeedUpdate
from kronos_client.core.options import check_waiting
from kronos_client.feeds.feed import POLL_S, Feed, Outage
from kronos_client.feeds.options import FeedSpec

P = ParamSpec("P")
T = TypeVar("T")


def _on_thread(
    method: Callable[Concatenate[Feed, P], T],
) -> Callable[Concatenate["AsyncFeed", P], Coroutine[Any, Any, T]]:
    """A method of ``Feed`` that runs on a thread, with its signature and its docstring."""

    @wraps(method)
    async def call(self: "AsyncFeed", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(method, self._feed, *args, **kwargs)

    return call


class AsyncFeed:
    """A feed with the methods of ``Feed``, to be awaited; ``AsyncForecastClient.feed`` gives it."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def name(self) -> str:
        """As ``Feed.name``."""
        return self._feed.name

    @property
    def spec(self) -> FeedSpec:
        """As ``Feed.spec``."""
        return self._feed.spec

    async def aclose(self) -> None:
        """Close the connections. The feed stays."""
        await asyncio.to_thread(self._feed.close)

    append = _on_thread(Feed.append)
    replace = _on_thread(Feed.replace)
    put_series = _on_thread(Feed.put_series)
    ids = _on_thread(Feed.ids)
    bars = _on_thread(Feed.bars)
    series = _on_thread(Feed.series)
    rows = _on_thread(Feed.rows)
    score_rows = _on_thread(Feed.score_rows)
    latest = _on_thread(Feed.latest)
    rank = _on_thread(Feed.rank)
    scores = _on_thread(Feed.scores)
    forecast = _on_thread(Feed.forecast)
    last_update_id = _on_thread(Feed.last_update_id)
    next_updates = _on_thread(Feed.next_updates)
    delete = _on_thread(Feed.delete)

    async def updates(
        self, *, after: str | int | None = None, timeout_s: float | None = None
    ) -> AsyncIterator[FeedUpdate]:
        """As ``Feed.updates``. It reads a few times a second, so that no thread waits for updates."""
        check_waiting(timeout_s=timeout_s)
        loop, outage = asyncio.get_running_loop(), Outage(self.name)
        last_at = loop.time()
        while timeout_s is None or loop.time() < last_at + timeout_s:
            found: list[FeedUpdate] = []
            with outage:
                after = await self.last_update_id() if after is None else after
                found = await self.next_updates(after, 0.0)
            for update in found:
                after, last_at = update.id, loop.time()
                yield update
            if not found:
                left_s = math.inf if timeout_s is None else last_at + timeout_s - loop.time()
                await asyncio.sleep(min(POLL_S, left_s))
