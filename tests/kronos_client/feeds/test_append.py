"""Appends to a feed: whole, once, and the same in any overlap."""

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis

from kronos_client.contract.errors import JobError
from kronos_client.feeds.feed import Feed
from kronos_client.feeds.options import FeedSpec
from kronos_client.feeds.store import FeedLimits, FeedStore
from kronos_client.feeds.stored import feed_key, part_key
from kronos_client.redis.connection import connect
from kronos_client.settings import ClientSettings
from kronos_client.testing import FakeForecastClient
from kronos_model.bars.synthetic import candles
from tests.faults.proxy import FaultyProxy, Rule

OPTIONS = {"pred_len": 5, "max_bars": 100}
NUM_BARS = 250
EDITS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 90)), min_size=1, max_size=12)
"""How far before the end of what is known an append begins, and how many bars it has."""


def frame(name="A", seed=1, bars=NUM_BARS) -> pd.DataFrame:
    made = pd.DataFrame(candles(seed=seed, bars=bars).as_dict())
    made["ds"] = pd.to_datetime(made.pop("timestamps"), utc=True)
    return made.assign(unique_id=name)


WHOLE = frame()


def as_frame(feed: Feed, name="A") -> pd.DataFrame:
    held = pd.DataFrame(feed.bars(name))
    return held.assign(timestamps=pd.to_datetime(held["timestamps"], utc=True))


def is_held(feed: Feed, expected: pd.DataFrame, name="A") -> bool:
    held, wanted = as_frame(feed, name), expected.tail(feed.spec.max_bars)
    values = [one for one in ("open", "high", "low", "close", "volume", "amount") if one in wanted]
    return list(held["timestamps"]) == list(wanted["ds"]) and np.array_equal(
        held[values].to_numpy("float32"), wanted[values].to_numpy("float32"), equal_nan=True
    )


def listed_blocks(redis: Redis, feed: Feed) -> set[str]:
    """The names of blocks that records list; all others are noted to be removed."""
    old = {name for names in redis.zrange(part_key("unlisted", feed._uid), 0, -1) for name in names.split()}
    read = feed._store.read(feed._uid, redis.hkeys(part_key("series", feed._uid)))
    listed = {block.name for series in read for block in series.record.blocks}
    assert not listed & old
    assert listed <= {*redis.hkeys(part_key("blocks", feed._uid))} <= listed | old
    return listed


def num_listed_bytes(redis: Redis, feed: Feed) -> int:
    """The size of the blocks that records list."""
    return sum(redis.hstrlen(part_key("blocks", feed._uid), name) for name in listed_blocks(redis, feed))


def code_of(call, *arguments, **options) -> str:
    with pytest.raises(JobError) as refused:
        call(*arguments, **options)
    return refused.value.code


@pytest.fixture
def feed(redis, redis_server):
    with Feed.open("f", url=redis_server.url, **OPTIONS) as feed:
        yield feed


@given(EDITS)
@settings(max_examples=40)
def test_appends_in_any_overlap_leave_what_one_of_all_leaves(redis, redis_server, edits):
    redis.flushall()
    with Feed.open("f", url=redis_server.url, **OPTIONS) as feed:
        end = num_new = 0
        for overlap, length in edits:
            start = min(max(end - overlap, 0), NUM_BARS - 1)
            stop = min(start + length, NUM_BARS)
            num_new += feed.append(WHOLE[start:stop]).num_new
            end = max(end, stop)
            assert is_held(feed, WHOLE[:end])
        assert num_new == end
        with connect(redis_server.url) as raw:
            assert len(listed_blocks(raw, feed)) <= 14
            # What counts against the limit is what is there.
            assert raw.hget("kronos:feed:f", "num_bytes") == str(num_listed_bytes(raw, feed))


def test_a_repeated_append_changes_nothing(feed, redis):
    assert feed.append(WHOLE).changed == ("A",)
    before = {key: redis.dump(key) for key in redis.scan_iter("kronos:feed_[sv]*")}
    again = feed.append(WHOLE[-30:])
    assert (again.num_new, again.num_corrected, again.changed) == (0, 0, ())
    assert {key: redis.dump(key) for key in redis.scan_iter("kronos:feed_[sv]*")} == before


def test_a_correction_reaches_three_bars_back(feed):
    feed.append(WHOLE)
    changed = WHOLE.copy()
    changed.loc[NUM_BARS - 3, "close"] = changed.loc[NUM_BARS - 3, "open"]
    assert feed.append(changed[-3:]).num_corrected == 1
    assert is_held(feed, changed)
    changed.loc[NUM_BARS - 4, "close"] = changed.loc[NUM_BARS - 4, "open"]
    assert code_of(feed.append, changed[-4:]) == "FEED_BAR_CHANGED"
    assert feed.replace(changed).changed == ("A",)
    assert is_held(feed, changed)


def test_a_bar_between_known_ones_is_a_correction_or_refused(feed):
    feed.append(WHOLE.drop([NUM_BARS - 2, NUM_BARS - 9]))
    assert feed.append(WHOLE[-3:]).num_corrected == 1
    assert code_of(feed.append, WHOLE[-9:]) == "FEED_BAR_CHANGED"
    assert is_held(feed, WHOLE.drop(NUM_BARS - 9))


def test_one_series_at_fault_refuses_the_whole_append(feed):
    feed.append(WHOLE)
    bad = frame("B", seed=2)
    bad.loc[7, "close"] = np.nan
    with pytest.raises(JobError) as refused:
        feed.append(pd.concat([frame("C", 3), bad]))
    assert (refused.value.code, refused.value.details["series"]) == ("NOT_FINITE", "B")
    assert feed.ids() == ["A"]


@pytest.mark.parametrize(("bar_time", "num_held"), [("start", 1), ("end", 0)])
def test_a_bar_that_has_not_ended_is_held_back(redis, redis_server, bar_time, num_held):
    minute = datetime.now(UTC) - timedelta(seconds=30)
    bars = WHOLE[:50].assign(ds=pd.date_range(end=minute, periods=50, freq="min"))
    with Feed.open("f", url=redis_server.url, bar_time=bar_time, **OPTIONS) as feed:
        assert feed.append(bars).num_held_back == num_held
        assert is_held(feed, bars[: 50 - num_held])
    with Feed.open("g", url=redis_server.url, closed_only=False, **OPTIONS) as feed:
        assert feed.append(bars).num_held_back == 0


def test_an_exchange_says_when_times_without_an_offset_are(redis, redis_server):
    now = datetime.now(ZoneInfo("Asia/Tokyo")).replace(tzinfo=None)
    bars = WHOLE[:50].assign(ds=pd.date_range(end=now - timedelta(seconds=30), periods=50, freq="min"))
    with Feed.open("f", url=redis_server.url, calendar="XTKS", **OPTIONS) as feed:
        assert feed.append(bars).num_held_back == 1


@pytest.mark.parametrize(
    ("calendar", "days", "closes_at"),
    [
        ("XNYS", ["2024-06-13", "2024-06-14", "2024-06-17", "2024-06-18"], "2024-06-18T20:00:00+00:00"),
        ("XNYS", ["2024-07-01", "2024-07-02", "2024-07-03"], "2024-07-03T17:00:00+00:00"),  # half a day
        ("XTKS", ["2024-06-13", "2024-06-14", "2024-06-17"], "2024-06-17T06:00:00+00:00"),  # a lunch break
        # Starts of Tokyo's days, in UTC.
        (
            "XTKS",
            ["2024-06-12T15:00Z", "2024-06-13T15:00Z", "2024-06-16T15:00Z"],
            "2024-06-17T06:00:00+00:00",
        ),
        ("24/7", ["2024-06-13Z", "2024-06-14Z", "2024-06-15Z"], "2024-06-16T00:00:00+00:00"),
    ],
)
def test_a_daily_bar_has_ended_as_the_exchange_closes(
    redis, redis_server, monkeypatch, calendar, days, closes_at
):
    times = [day.replace("Z", "T00:00Z") if "T" not in day else day for day in days]
    bars = WHOLE[: len(days)].assign(ds=times)
    close, clock = datetime.fromisoformat(closes_at).timestamp(), [0.0]
    monkeypatch.setattr(FeedStore, "now", lambda _: clock[0])
    with Feed.open("f", url=redis_server.url, calendar=calendar, **OPTIONS) as feed:
        clock[0] = close - 1
        found = feed.append(bars)
        assert (found.num_new, found.num_held_back, found.held_until) == (len(days) - 1, 1, closes_at)
        clock[0] = close
        found = feed.append(bars[-1:])
        assert (found.num_new, found.num_held_back, found.held_until) == (1, 0, None)


def test_times_without_an_offset_hold_nothing_back(feed):
    bars = WHOLE[:50].assign(ds=pd.date_range("2100-01-01", periods=50, freq="min"))
    assert feed.append(bars).num_new == 50


def test_two_appenders_at_once_lose_nothing(redis, redis_server):
    names = [f"s{i}" for i in range(6)]
    with Feed.open("f", url=redis_server.url, **OPTIONS) as one, Feed.open("f", url=redis_server.url) as two:
        failures: list[JobError] = []

        def append(feed: Feed, ends: range) -> None:
            try:
                for end in ends:
                    feed.append(pd.concat([WHOLE[:end].assign(unique_id=name) for name in names]))
            except JobError as error:
                failures.append(error)

        threads = [threading.Thread(target=append, args=(feed, range(20, 60, 2))) for feed in (one, two)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert all(is_held(one, WHOLE[:58], name) for name in names)


def test_options_decide_whether_it_is_the_same_feed(feed, redis_server):
    feed.append(WHOLE)
    with Feed.open("f", url=redis_server.url, **OPTIONS) as same:
        assert is_held(same, WHOLE)
    with pytest.raises(JobError) as refused:
        Feed.open("f", url=redis_server.url, **OPTIONS, sample_count=7)
    assert (refused.value.code, refused.value.field) == ("FEED_CONFLICT", "sample_count")
    assert code_of(Feed.open, "none", url=redis_server.url) == "FEED_NOT_FOUND"
    assert code_of(Feed.open, "g", url=redis_server.url, pred_len=0) == "BAD_VALUE"


def test_deletion_removes_all_of_it_and_nothing_else(feed, redis, redis_server):
    with Feed.open("g", url=redis_server.url, **OPTIONS) as other:
        other.append(WHOLE)
        others = {*redis.scan_iter()} - {"kronos:feed:f"}
        feed.append(WHOLE)
        assert redis.llen("cpu.feed\x06\x163") == 2
        feed.delete()
        assert {*redis.scan_iter()} == others
        assert redis.llen("cpu.feed\x06\x163") == 1
        assert code_of(feed.append, WHOLE) == code_of(feed.bars, "A") == "FEED_GONE"
        assert is_held(other, WHOLE)


def test_after_a_loss_it_is_created_again(feed, redis, redis_server):
    feed.append(WHOLE)
    redis.flushall()
    assert code_of(feed.append, WHOLE) == "FEED_GONE"
    with Feed.open("f", url=redis_server.url, **OPTIONS) as again:
        again.append(WHOLE)
        assert is_held(again, WHOLE)


@pytest.mark.parametrize("is_fake", [False, True])
def test_what_exceeds_a_limit_is_refused_and_leaves_no_trace(redis, redis_server, is_fake):
    fake = FakeForecastClient()  # it is alive as long as its feeds are in use
    store = fake._feed_store() if is_fake else FeedStore(redis_server.url)
    store.limits = FeedLimits(max_feeds=1, max_series=1, max_bytes=5000)
    given = OPTIONS | {"store": store, "workers": list}
    with Feed.open("f", **given) as feed:
        feed.append(WHOLE[:90])
        calls: list[tuple[Callable[[], object], int, int]] = [
            (lambda: feed.append(frame("B")[:9]), 1, 2),
            (lambda: Feed.open("g", **given), 1, 2),
            (lambda: feed.replace(WHOLE[:160]), 5000, 160 * 36),
        ]
        for call, limit, actual in calls:
            with pytest.raises(JobError) as refused:
                call()
            found = refused.value
            assert (found.code, found.details) == ("LIMIT_EXCEEDED", {"limit": limit, "actual": actual})
        assert feed.ids() == ["A"]
        assert is_held(feed, WHOLE[:90])


def test_a_feed_that_nobody_appends_to_is_deleted_at_last(feed, redis, redis_server):
    feed.append(WHOLE)
    redis.zadd("kronos:feeds", {"f": 0})
    Feed.open("g", url=redis_server.url, **OPTIONS).close()
    assert {*redis.scan_iter("kronos:*")} == {"kronos:feeds", "kronos:feed:g"}
    assert code_of(feed.append, WHOLE) == "FEED_GONE"
    assert code_of(Feed.open, "f", url=redis_server.url) == "FEED_NOT_FOUND"


def test_an_append_that_loses_to_others_every_time_gives_up(feed, redis_server, monkeypatch):
    feed.append(WHOLE[:60])
    with Feed.open("f", url=redis_server.url) as other:
        read, num_others = feed._store.read, 0

        def read_too_early(*args):
            nonlocal num_others
            found, num_others = read(*args), num_others + 1
            other.append(WHOLE[: 60 + num_others])
            return found

        monkeypatch.setattr(feed._store, "read", read_too_early)
        assert code_of(feed.append, WHOLE) == "FEED_BUSY"
        assert (num_others, is_held(other, WHOLE[:80])) == (20, True)


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("name", {"name": "x" * 101}),
        ("max_bars", {"max_bars": 7}),
        ("max_bars", {"max_bars": 8193}),
        ("corrections", {"corrections": 9}),
        ("keep", {"keep": ["open"]}),
        ("paths", {"paths": True}),
    ],
)
def test_options_beyond_their_limits_are_refused(redis, redis_server, field, given):
    with pytest.raises(JobError) as refused:
        Feed.open(**{"name": "f", "url": redis_server.url} | OPTIONS | given)
    assert (refused.value.code, refused.value.field) == ("BAD_VALUE", field)
    assert not redis.keys("kronos:feed*")


def test_a_feed_is_stored_without_defaults_so_that_an_older_worker_can_make_its_jobs():
    spec = FeedSpec.from_options(ClientSettings.model_construct(), pred_len=5, sample_count=30, top_k=0)
    assert json.loads(spec.to_json())["job"] == {"pred_len": 5, "sampling": {"sample_count": 30}}
    for text in (spec.to_json(), json.dumps(vars(spec))):
        assert FeedSpec.from_json(text) == spec


def test_a_long_id_is_refused(feed):
    assert code_of(feed.append, frame("x" * 201)) == "BAD_VALUE"
    assert feed.append(frame("x" * 200)).num_new == NUM_BARS


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize(
    ("command", "script"), [("EVALSHA", "feed_upload"), ("ZRANGE", ""), ("EVALSHA", "feed_append")]
)
def test_an_error_reply_leaves_all_or_nothing_and_the_append_can_be_repeated(
    redis, redis_server, command, script, is_after
):
    with FaultyProxy(redis_server.url) as proxy, Feed.open("f", url=proxy.url, **OPTIONS) as feed:
        feed.append(WHOLE[:60])
        text = "MISCONF Redis is unable to persist on disk."
        rule = Rule(text, lambda one: (one.command, one.script) == (command, script), is_after)
        proxy.rules = [rule]
        changes = pd.concat([WHOLE[:70], frame("B", 2)[:70]])
        assert code_of(feed.append, changes) == "BROKER_UNREACHABLE"
        assert rule.num_hits
        proxy.rules = []
        is_visible = script == "feed_append" and is_after
        assert feed.ids() == (["A", "B"] if is_visible else ["A"])
        assert is_held(feed, WHOLE[: 70 if is_visible else 60])
        assert feed.append(changes).num_new == (0 if is_visible else 80)
        assert is_held(feed, WHOLE[:70])
        assert num_listed_bytes(redis, feed) == int(redis.hget("kronos:feed:f", "num_bytes"))


def test_blocks_that_no_record_lists_go_by_later_appends(feed, redis):
    keys = [feed_key("f"), part_key("unlisted", feed._uid), part_key("blocks", feed._uid)]

    def upload(names: str) -> None:
        contents = [b"x" for _ in names.split()]
        assert feed._store._run("feed_upload", keys, [feed._uid, 600, names, *contents])

    upload("cut off")
    for end in range(60, 66):
        feed.append(WHOLE[:end])
    names = " ".join(listed_blocks(redis, feed))
    upload(names)  # a command that was sent twice, and came late
    old = redis.zrange(keys[1], 0, -1)
    assert {"cut off"} < {*old}
    assert names not in old
    assert redis.hexists(keys[2], "off")
    redis.zadd(keys[1], dict.fromkeys(old, 0))
    for end in range(66, 72):
        feed.append(WHOLE[:end])
    assert not {*old} & {*redis.zrange(keys[1], 0, -1)}
    assert len(listed_blocks(redis, feed)) < 10
    assert not redis.hexists(keys[2], "off")
    assert is_held(feed, WHOLE[:71])


def test_a_full_redis_is_read_and_makes_room_when_it_refuses_an_append(feed, redis):
    for end in range(60, 70):
        feed.append(WHOLE[:end])
    old = redis.zrange(part_key("unlisted", feed._uid), 0, -1)
    redis.zadd(part_key("unlisted", feed._uid), dict.fromkeys(old, 0))
    redis.config_set("maxmemory", 1)
    try:
        assert code_of(feed.append, WHOLE[:71]) == "BROKER_UNREACHABLE"
        assert [row["id"] for row in feed.rows()] == ["A"]
        assert is_held(feed, WHOLE[:69])
    finally:
        redis.config_set("maxmemory", 0)
    assert old
    assert redis.zrange(part_key("unlisted", feed._uid), 0, -1) == []
    assert feed.append(WHOLE[:71]).num_new == 2


def test_ids_that_could_be_confused_are_refused(feed):
    same = pd.concat(
        [WHOLE.assign(unique_id=pd.Series(["1"] * NUM_BARS, dtype=object)), WHOLE.assign(unique_id=1)]
    )
    assert code_of(feed.append, same) == "DUPLICATE_ID"
    assert code_of(feed.append, WHOLE.assign(unique_id="a\nb")) == "BAD_VALUE"
    assert feed.ids() == []
