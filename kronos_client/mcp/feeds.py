"""Tools that read feeds: which there are, the newest forecasts of one, and how its past ones did."""

from functools import partial
from typing import Annotated, Any

from mcp.server.mcpserver import MCPServer
from mcp_types import CallToolResult
from pydantic import Field

from kronos_client.feeds.feed import Feed
from kronos_client.feeds.scores import By
from kronos_client.feeds.store import SCORES_KEPT_DAYS, FeedStore
from kronos_client.mcp import service as base
from kronos_client.mcp.service import MAX_LISTED, READS, AnyContext, answer


def add(server: MCPServer[Any], service: base.Service) -> None:
    """Add the tools to a server."""
    core, store = service.core, FeedStore.from_settings(service.core.settings)

    async def opened(context: AnyContext, name: str) -> Feed:
        service.allow(context, "predict")
        make = partial(Feed.open, settings=core.settings, store=store)
        feed: Feed = await core.call(make, service.feed_name(context, name))
        return feed

    @server.tool(**READS)
    async def list_feeds(context: AnyContext) -> CallToolResult:
        """The feeds: universes of series whose forecasts are kept current. read_feed reads one."""
        service.allow(context, "predict")
        prefix = service.feed_name(context, "")
        names = [name for name, _, _ in await core.call(store.all) if name.startswith(prefix)]
        shown = [name.removeprefix(prefix) for name in names[:MAX_LISTED]]
        none = None if names else "There are no feeds: `kronos feed create` makes one."
        return answer({"feeds": shown, "total": len(names), "next": none})

    @server.tool(**READS)
    async def read_feed(
        context: AnyContext,
        name: str,
        rank: Annotated[str | None, Field(description="an event of the feed: the likeliest first")] = None,
        limit: Annotated[int, Field(ge=1, le=MAX_LISTED, description="series in the answer")] = 20,
    ) -> CallToolResult:
        """The newest forecast of each series of a feed: age, quantiles of the close, chances of its events.

        A row that is not `is_current` is not to be relied on: its bars are late, or not forecast yet.
        """
        feed = await opened(context, name)
        rows = await core.call(feed.rows, rank)
        content = {"events": feed.spec.events, "pred_len": feed.spec.job.get("pred_len")}
        return answer(content | {"rows": rows[:limit], "total": len(rows)})

    @server.tool(**READS)
    async def feed_scores(
        context: AnyContext,
        name: str,
        by: Annotated[By, Field(description="a row for each of these")] = "series",
        days: Annotated[
            int | None, Field(ge=1, le=SCORES_KEPT_DAYS, description="the last ones alone")
        ] = None,
        limit: Annotated[int, Field(ge=1, le=MAX_LISTED, description="rows in the answer")] = 20,
    ) -> CallToolResult:
        """How a feed's own past forecasts did: the first row, without an id, is of all series.

        Do not rely on forecasts with a `coverage_80` far from 0.8, or with a `pinball_ratio` of 1 or more: a
        bootstrap of each lookback did as well.
        """
        feed = await opened(context, name)
        rows = await core.call(partial(feed.score_rows, by, days=days))
        return answer({"rows": rows[:limit], "total": len(rows)})
