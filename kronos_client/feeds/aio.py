"""AsyncFeed: a feed for asyncio. Each call runs on a thread."""

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from kronos_client.contract.feed import Appended, FeedSeries, FeedUpdate
from kronos_client.core.options import check_waiting
from kronos_client.core.predict_df import ID_COLUMN, TIMESTAMP_COLUMN
from kronos_client.feeds.feed import POLL_S, WAIT_S, Feed, Outage
from kronos_client.feeds.options import FeedSpec
from kronos_client.feeds.scores import By

if TYPE_CHECKING:
    import pandas as pd


class AsyncFeed:
    """A feed, as ``Feed``; ``AsyncForecastClient.feed`` gives it."""

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

    async def append(
        self, bars: Any, *, id_column: str = ID_COLUMN, timestamp_column: str = TIMESTAMP_COLUMN
    ) -> Appended:
        """As ``Feed.append``."""
        titles = {"id_column": id_column, "timestamp_column": timestamp_column}
        return await asyncio.to_thread(self._feed.append, bars, **titles)

    async def replace(
        self, bars: Any, *, id_column: str = ID_COLUMN, timestamp_column: str = TIMESTAMP_COLUMN
    ) -> Appended:
        """As ``Feed.replace``."""
        titles = {"id_column": id_column, "timestamp_column": timestamp_column}
        return await asyncio.to_thread(self._feed.replace, bars, **titles)

    async def put_series(self, series: Mapping[str, Any], *, is_whole: bool = False) -> Appended:
        """As ``Feed.put_series``."""
        return await asyncio.to_thread(self._feed.put_series, series, is_whole=is_whole)

    async def ids(self) -> list[str]:
        """As ``Feed.ids``."""
        return await asyncio.to_thread(self._feed.ids)

    async def bars(self, series_id: str, *, all_kept: bool = False) -> dict[str, Any]:
        """As ``Feed.bars``."""
        return await asyncio.to_thread(self._feed.bars, series_id, all_kept=all_kept)

    async def series(self, series_id: str) -> FeedSeries:
        """As ``Feed.series``."""
        return await asyncio.to_thread(self._feed.series, series_id)

    async def rows(self, event: str | None = None, num_closes: int = 0) -> list[dict[str, Any]]:
        """As ``Feed.rows``."""
        return await asyncio.to_thread(self._feed.rows, event, num_closes)

    async def score_rows(self, by: By = "series", *, days: int | None = None) -> list[dict[str, Any]]:
        """As ``Feed.score_rows``."""
        return await asyncio.to_thread(self._feed.score_rows, by, days=days)

    async def latest(self, *, max_age_s: float = math.inf) -> "pd.DataFrame":
        """As ``Feed.latest``."""
        return await asyncio.to_thread(self._feed.latest, max_age_s=max_age_s)

    async def rank(self, event: str, *, max_age_s: float = math.inf) -> "pd.DataFrame":
        """As ``Feed.rank``."""
        return await asyncio.to_thread(self._feed.rank, event, max_age_s=max_age_s)

    async def scores(self, by: By = "series", *, days: int | None = None) -> "pd.DataFrame":
        """As ``Feed.scores``."""
        return await asyncio.to_thread(self._feed.scores, by, days=days)

    async def forecast(self, series_id: str) -> FeedUpdate | None:
        """As ``Feed.forecast``."""
        return await asyncio.to_thread(self._feed.forecast, series_id)

    async def last_update_id(self) -> str:
        """As ``Feed.last_update_id``."""
        return await asyncio.to_thread(self._feed.last_update_id)

    async def next_updates(self, after: str | int, wait_s: float = WAIT_S) -> list[FeedUpdate]:
        """As ``Feed.next_updates``."""
        return await asyncio.to_thread(self._feed.next_updates, after, wait_s)

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

    async def delete(self) -> None:
        """As ``Feed.delete``."""
        await asyncio.to_thread(self._feed.delete)
