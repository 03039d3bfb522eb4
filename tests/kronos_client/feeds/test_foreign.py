"""What another program writes under a feed's keys is an error with a code and the key, and nothing loops."""

from collections.abc import Callable

import pandas as pd
import pytest
from redis import Redis

from kronos_client.contract.errors import JobError
from kronos_client.feeds.feed import Feed
from kronos_client.feeds.store import FeedStore
from kronos_client.feeds.stored import FEEDS_KEY, PARTS, feed_key, part_keys
from kronos_client.redis.queues import queue_states
from tests.kronos_client.feeds.test_forecasts import HandWorker, worker  # noqa: F401
from tests.kronos_client.feeds.test_scores import some_bars

NAMES = ["s0", "s1"]
EVENT = "close>last at end"
OPTIONS = {"pred_len": 3, "sample_count": 20, "events": [EVENT], "calibration": "adaptive"}
MAY_BE_LOST = {"FEED_GONE", "FEED_NOT_FOUND"}
JUNK = (b"\xff\xfe", b"5", b"{}", b"")


def both(num_bars: int, first: int = 0) -> pd.DataFrame:
    return some_bars(num_bars, first, NAMES)


def keys_of(feed: Feed) -> list[str]:
    return [feed_key("f"), FEEDS_KEY, *part_keys(feed._uid, *PARTS)]


def outcomes(calls: list[Callable[[], object]]) -> list[JobError]:
    """The errors of calls; each must be one of ours."""
    errors = []
    for call in calls:
        try:
            call()
        except JobError as error:
            errors.append(error)
    return errors


def use_all(feed: Feed, url: str, worker: HandWorker, first: int) -> list[JobError]:  # noqa: F811
    """The errors of all that a user and a worker do with a feed, and of its series."""

    def open_again() -> None:
        Feed.open("f", url=url, **OPTIONS).close()

    def follow() -> None:
        errors.extend(update.error for update in feed.updates(after="0", timeout_s=0.01) if update.error)

    def compute() -> None:
        for _ in range(20):
            if (work := worker.take()) is None:
                return
            try:
                made = work.take()
            except JobError as error:
                work.end(error)
                raise
            worker.finish(work, made)
        raise AssertionError("it never ends")

    errors: list[JobError] = []
    calls = [open_again, lambda: feed.append(both(1, first)), compute, feed.ids, feed.latest, follow]
    calls += [lambda: feed.rank(EVENT), feed.score_rows, lambda: feed.score_rows("chance")]
    calls += [lambda: feed.score_rows(days=3), lambda: feed.forecast("s1"), lambda: feed.series("s1")]
    calls += [lambda: feed.bars("s1"), lambda: feed.rows(num_closes=9), feed._store.all, feed._store.sweep]
    return errors + outcomes(calls)


@pytest.fixture
def feed(redis, redis_server, worker):  # noqa: F811
    with Feed.open("f", url=redis_server.url, **OPTIONS) as feed:
        for first in (0, 20, 21, 22):
            feed.append(both(20 if first == 0 else 1, first))
            worker.run()
        yield feed


def assert_mended(feed: Feed, redis: Redis, redis_server, worker: HandWorker) -> None:  # noqa: F811
    """After what the errors say was done, all series are forecast again, and a deletion leaves nothing."""
    with Feed.open("f", url=redis_server.url, **OPTIONS) as again:
        redis.hset(feed_key("f"), "waiting", "job 1.0")  # a minute later
        again.replace(both(25))
        worker.run()
        assert [again.forecast(name).last_time for name in NAMES] == [
            again.bars(name)["timestamps"][-1] for name in NAMES
        ]
        again.delete()
    if again._uid == feed._uid:
        assert list(redis.scan_iter("*feed*")) == []


@pytest.mark.parametrize("number", range(2 + len(PARTS)))
def test_a_key_of_another_type(feed, redis, redis_server, worker, number):  # noqa: F811
    key = keys_of(feed)[number]
    redis.delete(key)
    redis.set(key, "of another program")
    worker.store = FeedStore(redis_server.url)  # which has read nothing
    found = use_all(feed, redis_server.url, worker, 23)
    unreadable = [error for error in found if error.code == "KEY_UNREADABLE"]
    assert unreadable
    assert {error.code for error in found} <= {"KEY_UNREADABLE", *MAY_BE_LOST}
    assert [one.message for one in unreadable if key not in one.message or "delete" not in one.message] == []
    assert queue_states(redis, 100)
    redis.delete(key)
    assert_mended(feed, redis, redis_server, worker)


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("number", range(2, 2 + len(PARTS)))
def test_values_of_another_form(feed, redis, redis_server, worker, number, junk):  # noqa: F811
    key = keys_of(feed)[number]
    feed.append(both(1, 23))
    held = worker.take()
    payload = held.take()
    match redis.type(key):
        case "hash":
            redis.hset(key, mapping=dict.fromkeys(redis.hkeys(key), junk))
        case "zset":
            redis.zadd(key, {junk: 0})
        case "stream":
            redis.xadd(key, {"other": junk})
    worker.store = FeedStore(redis_server.url)
    found = outcomes([lambda: worker.finish(held, payload)])
    found += use_all(feed, redis_server.url, worker, 24)
    assert {error.code for error in found} <= {"KEY_UNREADABLE", *MAY_BE_LOST}
    assert [one.message for one in found if one.code == "KEY_UNREADABLE" and key not in one.message] == []
    assert_mended(feed, redis, redis_server, worker)


@pytest.mark.parametrize("junk", JUNK)
def test_options_of_another_form(feed, redis, redis_server, worker, junk):  # noqa: F811
    redis.hset(feed_key("f"), "options", junk)
    found = use_all(feed, redis_server.url, worker, 23)
    assert {error.code for error in found} == {"KEY_UNREADABLE"}
    assert [one.message for one in found if feed_key("f") not in one.message] == []
    redis.delete(feed_key("f"))
    assert_mended(feed, redis, redis_server, worker)
