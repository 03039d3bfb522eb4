"""Routes of feeds: bars that callers append, and the newest forecasts. Each key has feeds of its own.

Names of feeds and series may have slashes, such as ``BTC/USDT``.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Annotated, Any, Final, cast

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel, ConfigDict, Field, create_model

from api_stub.backend import Backend, BackendDependency
from api_stub.job_state import problem_of
from api_stub.keys import needs, own_name
from api_stub.routes.documented import AsDocumented, LargeBodies, json_only
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.feed import Appended, FeedSeries, FeedUpdate, NewBars
from kronos_client.contract.names import MAX_ID_CHARS
from kronos_client.core.options import FeedOptions
from kronos_client.feeds.feed import Feed, Outage
from kronos_client.feeds.scores import By
from kronos_client.feeds.store import SCORES_KEPT_DAYS
from kronos_model.checkpoints.names import did_you_mean

router = APIRouter(
    prefix="/v1/feeds",
    tags=["feeds"],
    dependencies=[needs("predict"), Depends(json_only)],
    route_class=LargeBodies,
)

MAX_NAME_CHARS: Final = 64
MAX_CLOSES: Final = 500
POLL_S: Final = 0.5
"""Seconds between two looks for updates."""
OPTIONS: Final = FeedOptions.__annotations__
FeedName = Annotated[str, Path(min_length=1, max_length=MAX_NAME_CHARS, examples=["us-5min"])]


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", title="FeedOptions")


DOCUMENTED: Final = create_model(
    "FeedOptions",
    __base__=_Options,
    **cast(Any, {name: (kind, Field(None)) for name, kind in OPTIONS.items()}),
)


class FeedView(BaseModel):
    """A feed."""

    name: str
    options: dict[str, Any] = Field(description="by the names that Python clients give them")
    series: list[str] = Field(description="the ids of its series")
    last_update: str = Field(description="the id of its newest update; 0 if there is none")


class FeedsView(BaseModel):
    """The caller's feeds, the newest append first. A key with admin sees all."""

    feeds: list[str]


class BarsOfSeries(BaseModel):
    """Bars of any number of series, in any overlap with those that are known."""

    model_config = ConfigDict(extra="forbid")

    series: list[NewBars] = Field(
        min_length=1, description="columns as in a forecast job; for null the feed's `missing` decides"
    )
    replace: bool = Field(default=False, description="exchange the series whole, such as after a split")


class LatestView(BaseModel):
    """The newest forecast of each series, with its age."""

    rows: list[dict[str, Any]] = Field(
        description="`id`, `last_time`, `last_close`, `age_s`, `overdue_s`, `is_current`, `close_mean`, "
        "quantiles such as `close_q0.1`, the chance of each event, `error`; as in docs/use/feeds.md"
    )


class ScoresView(BaseModel):
    """Scores by model, and by series, bars ahead or tenth of the chances."""

    rows: list[dict[str, Any]] = Field(
        description="`id` (null: all series), `model`, `num_scored`, `coverage_50`, `coverage_80`, "
        "`coverage_95`, `pinball_ratio`, `brier`, `num_missing`; with another `by` as in docs/use/feeds.md"
    )


async def _opened(name: FeedName, request: Request, backend: BackendDependency) -> Feed:
    return await _open(backend, own_name(request, name))


OpenFeed = Annotated[Feed, Depends(_opened)]


@router.get("")
async def list_feeds(request: Request, backend: BackendDependency) -> FeedsView:
    """The feeds of this key."""
    prefix = own_name(request, "")
    names = [name for name, _, _ in await backend.call(backend.feeds.all)]
    return FeedsView(feeds=[name.removeprefix(prefix) for name in names if name.startswith(prefix)])


@router.put("/{name:path}")
async def create_feed(
    name: FeedName,
    options: Annotated[dict[str, Any], AsDocumented(DOCUMENTED)],
    request: Request,
    backend: BackendDependency,
) -> FeedView:
    """Create a feed. With equal options, an existing one stays as it is; with others, it is FEED_CONFLICT."""
    if unknown := sorted(options.keys() - OPTIONS.keys()):
        text = f"{unknown[0]} is no option of a feed: it has {', '.join(sorted(OPTIONS))}"
        text += did_you_mean(unknown[0][:MAX_NAME_CHARS], OPTIONS)
        raise JobError(ErrorCode.UNKNOWN_FIELD, text, unknown[0])
    if not options:
        raise JobError(
            ErrorCode.MISSING_FIELD, "pred_len is missing: say how many bars to forecast", "pred_len"
        )
    return await _view(backend, await _open(backend, own_name(request, name), **options), name)


@router.delete("/{name:path}", status_code=204)
async def delete_feed(feed: OpenFeed, backend: BackendDependency) -> Response:
    """Delete a feed with all its bars and forecasts."""
    await backend.call(feed.delete)
    return Response(status_code=204)


@router.post("/{name:path}/bars")
async def append_bars(body: BarsOfSeries, feed: OpenFeed, backend: BackendDependency) -> Appended:
    """Append bars, all or none. Workers forecast each series with a new bar."""
    series = {item.id: item.model_dump(exclude={"id"}, exclude_none=True) for item in body.series}
    if len(series) < len(body.series):
        raise JobError(ErrorCode.DUPLICATE_ID, "two series have the same id: give each its own", "series")
    return await backend.call(feed.put_series, series, is_whole=body.replace)


@router.get("/{name:path}/latest")
async def get_latest(
    feed: OpenFeed,
    backend: BackendDependency,
    max_age_s: Annotated[float | None, Query(ge=0, description="leave out older forecasts")] = None,
    rank: Annotated[
        str | None, Query(max_length=100, description="sort by the chance of this event, the largest first")
    ] = None,
    closes: Annotated[
        int, Query(ge=0, le=MAX_CLOSES, description="add the `closes` of so many newest bars to each row")
    ] = 0,
) -> LatestView:
    """A row for each series: its newest forecast, or why there is none."""
    rows = await backend.call(feed.rows, rank, closes)
    return LatestView(rows=[row for row in rows if max_age_s is None or row["age_s"] <= max_age_s])


@router.get("/{name:path}/scores")
async def get_scores(
    feed: OpenFeed,
    backend: BackendDependency,
    by: Annotated[By, Query(description="what has a row")] = "series",
    days: Annotated[
        int | None, Query(ge=1, le=SCORES_KEPT_DAYS, description="only what was scored in the last ones")
    ] = None,
) -> ScoresView:
    """How the feed's own past forecasts did, against bars as they were first read."""
    return ScoresView(rows=await backend.call(partial(feed.score_rows, by, days=days)))


@router.get("/{name:path}/series/{series_id:path}", response_model_exclude_none=True)
async def get_feed_series(
    series_id: Annotated[str, Path(max_length=MAX_ID_CHARS)], feed: OpenFeed, backend: BackendDependency
) -> FeedSeries:
    """The bars of one series, its newest forecast, and earlier ones whose bars have not all come."""
    return await backend.call(feed.series, series_id)


@router.get("/{name:path}/events", response_class=EventSourceResponse)
async def follow_feed(
    name: FeedName,
    feed: OpenFeed,
    backend: BackendDependency,
    last_event_id: Annotated[str | None, Header(max_length=64, pattern=r"^\d+(-\d+)?$")] = None,
) -> AsyncIterator[ServerSentEvent]:
    """Each new forecast as an `update` event; its id goes into Last-Event-ID to miss none after a break.

    While Redis is away the stream stays open and waits.
    """
    after, outage = last_event_id, Outage(name)
    try:
        while True:
            found: list[FeedUpdate] = []
            with outage:
                after = await backend.call(feed.last_update_id) if after is None else after
                found = await backend.call(feed.next_updates, after, 0.0)
            for update in found:
                after = update.id
                yield ServerSentEvent(data=update, event="update", id=update.id)
            await asyncio.sleep(POLL_S)
    except JobError as error:  # the response has begun, so its status cannot change
        yield ServerSentEvent(data=problem_of(error), event="problem")


@router.get("/{name:path}")
async def get_feed(name: FeedName, feed: OpenFeed, backend: BackendDependency) -> FeedView:
    """A feed's options and series."""
    return await _view(backend, feed, name)


async def _open(backend: Backend, name: str, **options: Any) -> Feed:
    workers = backend.dispatcher.known_workers
    opened = partial(Feed.open, settings=backend.settings, store=backend.feeds, workers=workers)
    return await backend.call(partial(opened, name, **options))


async def _view(backend: Backend, feed: Feed, name: str) -> FeedView:
    series: Sequence[str] = await backend.call(feed.ids)
    last = await backend.call(feed.last_update_id)
    return FeedView(name=name, options=feed.spec.as_given(), series=list(series), last_update=last)
