"""Forecasts of a feed: the newest bars of each series, once, whatever happens to jobs; also in the fake."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis
from redis.exceptions import AuthenticationError, NoPermissionError

from kronos_client.client import ForecastClient
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.jobs import Limits, parse_job
from kronos_client.contract.names import FORECAST_TASK, job_key
from kronos_client.feeds.aio import AsyncFeed
from kronos_client.feeds.feed import Feed
from kronos_client.feeds.job import FeedJob, is_feed_job
from kronos_client.feeds.store import FeedStore
from kronos_client.feeds.stored import Read, part_key
from kronos_client.redis.connection import connect
from kronos_client.redis.queues import QueueState, queue_states
from kronos_client.settings import ClientSettings
from kronos_client.testing import FakeAsyncForecastClient, FakeForecastClient, _forecast
from kronos_model.bars.columns import COLUMNS
from kronos_model.bars.synthetic import candles
from worker.broker.service_order import cost_of

OPTIONS = {"pred_len": 3, "sample_count": 128, "events": ["close>last at end"], "quantiles": [0.1, 0.9]}
LIST = "cpu.feed\x06\x163"
DOCS = Path(__file__).parents[3] / "docs"
NAMES = [f"s{number}" for number in range(9)]


def bars(name: str, num_bars: int = 20, first: int = 0) -> pd.DataFrame:
    made = pd.DataFrame(candles(seed=NAMES.index(name), bars=60).as_dict())
    made["ds"] = pd.to_datetime(made.pop("timestamps"), utc=True)
    return made[first : first + num_bars].assign(unique_id=name)


def all_bars(num_bars: int = 20, first: int = 0) -> pd.DataFrame:
    return pd.concat([bars(name, num_bars, first) for name in NAMES])


class HandWorker:
    """Takes a feed's messages from Redis and computes them step by step, with the fake's forecasts."""

    def __init__(self, redis: Redis, url: str) -> None:
        self._redis, self.store = redis, FeedStore(url)
        self.held: list[FeedJob] = []
        self.recorded_coverage: float | None = None

    def take(self) -> FeedJob | None:
        """Take the next message, without its series."""
        message = self._redis.rpop(LIST)
        return None if message is None else self.again(json.loads(message))

    def again(self, message: dict) -> FeedJob:
        """A delivery of this message."""
        job = json.loads(message["body"])[1]["job"]
        assert is_feed_job(job)
        work = FeedJob(self.store, job, message["headers"]["id"], LIST, lambda _: self.recorded_coverage)
        work.message = message
        return work

    def finish(self, work: FeedJob, payload: dict | None) -> dict | JobError:
        limits = Limits()
        made = None if payload is None else _forecast(parse_job(payload, limits), "any", limits, "cpu.feed")
        return work.end(made)

    def run(self) -> int:
        """Compute all that is due; returns the number of jobs."""
        number = 0
        while (work := self.take()) is not None:
            self.finish(work, work.take())
            number += 1
        return number


@pytest.fixture
def worker(redis, redis_server):
    return HandWorker(redis, redis_server.url)


@pytest.fixture(params=["redis", "memory"])
def client(request):
    if request.param == "memory":
        client = FakeForecastClient()
        client.compute = lambda: 1
    else:
        server = request.getfixturevalue("redis_server")
        client = ForecastClient(server.url)
        client.compute = request.getfixturevalue("worker").run
    with client:
        yield client


def test_each_series_has_its_newest_forecast(client):
    with client.feed("f", **OPTIONS) as feed:
        feed.append(all_bars())
        assert client.compute() > 0
        latest, ranked = feed.latest(), feed.rank("close>last at end")
        columns = [
            "id",
            "last_time",
            "last_close",
            "age_s",
            "overdue_s",
            "is_current",
            "close_mean",
            "close_q0.1",
            "close_q0.9",
        ]
        assert list(latest) == [*columns, "close>last at end", "drift", "error"]
        assert list(latest["id"]) == NAMES
        closes = [feed.bars(name)["close"][-1] for name in NAMES]
        assert list(latest["last_close"].astype("float32")) == closes
        assert latest["close_q0.1"].lt(latest["close_q0.9"]).all()
        assert latest["overdue_s"].gt(0).all()  # its bars are years old
        assert not latest["is_current"].any()
        assert feed.latest(max_age_s=-1).empty
        assert list(ranked["close>last at end"]) == sorted(latest["close>last at end"], reverse=True)
        updates = list(feed.updates(after=0, timeout_s=0.01))
        assert sorted(update.series for update in updates) == NAMES
        for after in ("", "newest", 0.5):
            assert error_of(lambda after=after: next(feed.updates(after=after))).field == "after"
        assert error_of(lambda: next(feed.updates(timeout_s="5"))).field == "timeout_s"
        assert feed.forecast("s3") == next(one for one in updates if one.series == "s3").model_copy(
            update={"id": ""}
        )
        assert feed.forecast("s3").last_time == feed.bars("s3")["timestamps"][-1]
        assert list(feed.updates(after=updates[-1].id, timeout_s=0.01)) == []
        feed.append(bars("s1", 1, first=20))
        client.compute()
        (update,) = feed.next_updates(updates[-1].id)
        assert (update.series, update.version) == ("s1", 2)


def test_a_fake_refuses_and_holds_feeds_and_lists_them(monkeypatch):
    client = FakeForecastClient(hold=True)
    with client.feed("f", **OPTIONS) as feed:
        client.refuse_next(JobError("FEED_BUSY", "busy"))
        with pytest.raises(JobError, match="busy"):
            feed.append(all_bars())
        feed.append(all_bars())
        assert feed.latest()["close_mean"].isna().all()
        client.finish_feeds()
        assert feed.latest()["close_mean"].notna().all()
        feed.append(bars("s1", 1, first=20))
        client.finish_feeds()
        assert [name for name, _, _ in client._feed_store().all()] == ["f"]
        assert feed.score_rows(days=1) == feed.score_rows() != []
        now = client._feeds.now()
        monkeypatch.setattr(client._feeds, "now", lambda: now + 3 * 86_400)
        assert feed.score_rows(days=1) == []


def test_numbers_are_those_of_a_job_of_one_series(client):
    fake = FakeForecastClient()
    with client.feed("f", keep=COLUMNS, **OPTIONS) as feed, client.feed("g", seed=1, **OPTIONS) as short:
        feed.append(all_bars())
        short.append(all_bars())
        client.compute()
        assert list(short.forecast("s1").forecast.mean) == ["close"]
        for name in NAMES:
            found = feed.forecast(name).forecast
            (alone,) = fake.forecast(
                {name: feed.bars(name)}, seed=found.seed, timezone="UTC", **OPTIONS
            ).series
            assert (found.manifest.feed, alone.manifest.feed) == ("f", None)
            manifest = found.manifest.model_copy(update={"feed": None})
            assert alone == found.model_copy(update={"manifest": manifest})
        assert len({feed.forecast(name).forecast.seed for name in NAMES}) == len(NAMES)


@pytest.mark.parametrize("pred_len", [1, 3])
@pytest.mark.parametrize(
    ("first", "calendar", "late_s"),
    [
        ("2024-06-21T13:30-04:00", "XNYS", 60.0),  # a bar of the session is still to come
        ("2024-06-21T14:00-04:00", "XNYS", 0.0),
        ("2024-06-20T23:30-04:00", None, 60.0),
    ],
)
def test_a_bar_is_late_once_it_should_have_ended(client, monkeypatch, first, calendar, late_s, pred_len):
    """Also the last one of a session, which no other follows for long."""
    times = pd.date_range(first, periods=4, freq="30min")
    made = bars("s1", 4).assign(ds=times)
    asked_at = times[-1].timestamp() + 2 * 1800 + 60
    options = {**OPTIONS, "pred_len": pred_len, "events": [], "calendar": calendar}
    with client.feed("f", **options) as feed:
        feed.append(made)
        client.compute()
        monkeypatch.setattr(feed._store, "now", lambda: asked_at)
        (row,) = feed.rows()
        assert row["overdue_s"] == late_s
        assert row["is_current"] == (late_s == 0)


def test_a_correction_does_not_make_the_newest_bar_younger(client):
    with client.feed("f", **OPTIONS) as feed:
        feed.append(bars("s1", 20))
        client.compute()
        before = feed.forecast("s1")
        feed.append(bars("s1", 1, first=18).assign(close=1.0, low=0.5))
        client.compute()
        corrected = feed.forecast("s1")
        assert (corrected.version, corrected.appended_at) == (2, before.appended_at)
        feed.append(bars("s1", 1, first=20))
        client.compute()
        assert feed.forecast("s1").appended_at > before.appended_at


def test_a_quiet_feed_is_asked_in_short_requests(client, monkeypatch):
    """Redis must answer each within the connection's timeout."""
    waits_s = []
    with client.feed("f", **OPTIONS) as feed:
        updates = feed._store.updates
        monkeypatch.setattr("kronos_client.feeds.feed.WAIT_S", 0.02)
        monkeypatch.setattr(
            feed._store, "updates", lambda *args: (waits_s.append(args[-1]), updates(*args))[1]
        )
        assert feed.next_updates("0", 0.1) == []
        assert len(waits_s) > 1
        assert max(waits_s) <= 0.02


def test_spaces_do_not_make_another_event(client):
    given = {**OPTIONS, "events": ["close > last  at end", "close<last - 2 % at end"]}
    with client.feed("f", **given) as feed, client.feed("f", **given):
        assert feed.spec.events == ["close>last at end", "close<last-2% at end"]
        feed.append(all_bars())
        client.compute()
        for event in ("close>last at end", " close >last at end "):
            assert len(feed.rank(event)) == len(NAMES)
        with client.feed("f", **{**OPTIONS, "events": feed.spec.events}):
            pass
        different = {**OPTIONS, "events": ["close>last at end", "close<last-3% at end"]}
        assert error_of(lambda: client.feed("f", **different)).code == ErrorCode.FEED_CONFLICT


def away(code: ErrorCode, cause: Exception) -> JobError:
    error = JobError(code, "away")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("is_async", [False, True])
def test_updates_wait_while_redis_is_away(client, monkeypatch, caplog, is_async):
    monkeypatch.setattr("kronos_client.feeds.feed.POLL_S", 0.001)
    monkeypatch.setattr("kronos_client.feeds.aio.POLL_S", 0.001)
    with client.feed("f", **OPTIONS) as feed:
        feed.append(all_bars())
        client.compute()
        errors = [away(ErrorCode.BROKER_UNREACHABLE, ConnectionError())] * 3
        updates = feed._store.updates

        def failing(*args):
            if errors:
                raise errors.pop()
            return updates(*args)

        monkeypatch.setattr(feed._store, "updates", failing)

        async def follow(**given):
            return [one async for one in AsyncFeed(feed).updates(**given)]

        def read(**given):
            return asyncio.run(follow(**given)) if is_async else list(feed.updates(**given))

        assert len(read(after=0, timeout_s=0.5)) == len(NAMES)
        assert caplog.text.count("updates of feed 'f' wait: BROKER_UNREACHABLE: away") == 1
        errors += [away(ErrorCode.BROKER_UNREACHABLE, ConnectionError())] * 1000
        assert read(after=0, timeout_s=0.01) == []  # a timeout ends it
        for cause in (AuthenticationError(), NoPermissionError()):
            errors[:] = [away(ErrorCode.BROKER_UNREACHABLE, cause)]
            assert error_of(lambda: read(after=0, timeout_s=0.5)).code == ErrorCode.BROKER_UNREACHABLE


@pytest.mark.parametrize("zone", [None, "America/New_York"])
def test_a_series_has_its_bars_and_the_forecasts_whose_bars_have_not_all_come(client, zone):
    given = bars("s1", 30).reset_index(drop=True)
    days = pd.date_range("2025-10-10 12:00", periods=len(given), freq="D")  # clocks change at bar 23
    given["ds"] = days if zone is None else days.tz_localize(zone)
    with client.feed("f", **OPTIONS, missing="ffill") as feed:
        for read in (feed.series, feed.forecast, feed.bars):
            assert error_of(lambda read=read: read("s1")).code == ErrorCode.FEED_NOT_FOUND
        feed.append(bars("s2"))
        for last in (20, 21, 22, 24):
            feed.append(given[:last])
            client.compute()
        updates = {one.version: one for one in feed.updates(after="0", timeout_s=0.01) if one.series == "s1"}
        found = feed.series("s1")
        held = feed.bars("s1")
        times = list(held["timestamps"])
        assert times == found.bars["timestamps"]
        assert [str(pd.Timestamp(time)) for time in times] == [str(time) for time in given["ds"][:24]]
        for name in COLUMNS[:5]:
            assert list(pd.Series(found.bars[name], dtype="float32")) == list(held[name])
            assert found.bars[name] == pytest.approx(list(given[name][:24]), rel=1e-6)
        assert found.newest == feed.forecast("s1") == updates[4].model_copy(update={"id": ""})
        assert [(one.version, one.model) for one in found.past] == [(3, "stand-in")]  # 1 and 2 are done
        for one in found.past:
            earlier = updates[one.version].forecast
            assert (one.timestamps, one.manifest) == (earlier.timestamps, earlier.manifest)
            for level, columns in earlier.quantiles.items():
                assert one.quantiles[level]["close"] == pytest.approx(columns["close"], rel=1e-6)
        feed.replace(given[:25])
        assert feed.series("s1").past == ()  # not before its new forecast, nor after
        client.compute()
        assert feed.series("s1").past == ()


def error_of(call: Callable[[], object]) -> JobError:
    with pytest.raises(JobError) as error:
        call()
    return error.value


def test_a_deleted_feed_says_so(client):
    with client.feed("f", **OPTIONS) as feed, client.feed("f") as same:
        feed.append(all_bars())
        client.compute()
        same.delete()
        calls = [feed.latest, lambda: feed.forecast("s1"), lambda: feed.next_updates("0", 0.01)]
        calls.append(lambda: feed.series("s1"))
        for call in (*calls, lambda: feed.append(all_bars())):
            with pytest.raises(JobError) as error:
                call()
            assert error.value.code == ErrorCode.FEED_GONE
        with pytest.raises(JobError) as error:
            client.feed("f")
        assert error.value.code == ErrorCode.FEED_NOT_FOUND
        with pytest.raises(JobError) as error:
            feed.rank("close>last at 1")
        assert error.value.code == ErrorCode.BAD_VALUE


def test_the_same_with_asyncio():
    async def run() -> list[str]:
        async with FakeAsyncForecastClient() as client, await client.feed("f", **OPTIONS) as feed:
            await feed.append(all_bars())
            assert list((await feed.latest())["id"]) == await feed.ids()
            assert len(await feed.rank("close>last at end")) == len(NAMES)
            assert (await feed.series("s1")).newest == await feed.forecast("s1")
            assert (await feed.forecast("s1")).forecast is not None
            assert {row["id"]: len(row["closes"]) for row in await feed.rows(None, 7)} == dict.fromkeys(
                NAMES, 7
            )
            changed = bars("s1", 20).assign(close=1.0, low=0.5)
            await feed.replace(changed)
            assert (await feed.bars("s1"))["close"].tolist() == [1.0] * 20
            columns = {name: values[:20] for name, values in candles(seed=1, bars=60).as_dict().items()}
            assert (await feed.put_series({"new": columns})).changed == ("new",)
            assert await feed.score_rows() == (await feed.scores()).to_dict("records") == []
            return [update.series async for update in feed.updates(after=0, timeout_s=0.01)]

    assert sorted({*asyncio.run(run())}) == ["new", *NAMES]


def test_asyncio_has_every_method():
    def methods(feed: type) -> set[str]:
        return {name for name in vars(feed) if not name.startswith("_")}

    assert methods(Feed) - methods(AsyncFeed) == {"open", "close"}


@pytest.fixture
def feed(redis, redis_server):
    with Feed.open("f", url=redis_server.url, **OPTIONS) as feed:
        yield feed


def test_bars_that_come_while_a_message_waits_are_read(feed, worker, redis):
    for first in range(3):
        feed.append(all_bars(20 + first))
    assert redis.llen(LIST) == 1
    worker.run()
    updates = list(feed.updates(after="0", timeout_s=0.01))
    assert [(one.version, one.last_time) for one in updates] == [
        (3, feed.bars(one.series)["timestamps"][-1]) for one in updates
    ]
    assert len(updates) == len(NAMES)


@pytest.mark.parametrize("is_together", [True, False])
def test_a_pool_that_is_too_slow_leaves_out_ticks_of_all_series_evenly(feed, worker, is_together):
    feed.append(all_bars())
    counts = dict.fromkeys(NAMES, 0)
    for tick in range(30):
        for names in [NAMES] if is_together else [[name] for name in NAMES]:
            feed.append(pd.concat([bars(name, 1, 20 + tick) for name in names]))
        work = worker.take()
        for series in work.take()["series"]:  # one job a tick, of 4 of the 9 series
            counts[series["id"]] += 1
        work.end(JobError(ErrorCode.DEADLINE, "late", "deadline_s"))
        assert max(counts.values()) - min(counts.values()) <= 1
    assert sum(counts.values()) == 30 * 4


def test_a_message_counts_the_series_that_come_while_it_waits(feed, redis):
    redis.lpush(LIST, "another before")
    feed.append(bars("s1"))
    redis.lpush(LIST, "another after")
    feed.append(all_bars())
    redis.hset("kronos:feed:f", "max_series", 7)
    feed.append(all_bars(1, first=20))
    _, message, _ = redis.lrange(LIST, 0, -1)
    payload = json.loads(json.loads(message)["body"])
    assert cost_of(FORECAST_TASK, payload) == 7 * OPTIONS["sample_count"] * OPTIONS["pred_len"]
    feed.delete()
    assert redis.llen(LIST) == 2


def test_series_of_a_job_that_is_delivered_again_are_the_same(feed, worker, redis):
    feed.append(all_bars())
    first = worker.take()
    before = first.take()
    assert len(before["series"]) == 4  # 512 paths
    assert redis.llen(LIST) == 1  # for the others
    feed.append(bars(before["series"][0]["id"], 1, first=20))
    again = worker.again(first.message)
    after = again.take()
    assert [one["id"] for one in after["series"]] == [one["id"] for one in before["series"]]
    assert after["series"][0] != before["series"][0]
    worker.finish(again, after)
    worker.finish(first, before)  # late: the older version must not win
    worker.run()
    assert feed.forecast(before["series"][0]["id"]).version == 2
    assert len(list(feed.updates(after="0", timeout_s=0.01))) == len(NAMES)


def test_a_job_whose_outcomes_are_stored_takes_no_other_series(feed, worker, redis):
    feed.append(bars("s1"))
    work = worker.take()
    redis.hset(job_key(work.message["headers"]["id"]), "received_at", "1.0")
    worker.finish(work, work.take())
    feed.append(bars("s1", 1, first=20))
    assert worker.again(work.message).take() is None
    worker.run()
    assert feed.forecast("s1").version == 2


def test_a_late_outcome_leaves_newer_bars_to_the_later_delivery(feed, worker, redis):
    feed.append(bars("s1"))
    late = worker.take()
    redis.hset(job_key(late.message["headers"]["id"]), "received_at", "1.0")
    before = late.take()
    feed.append(bars("s1", 1, first=20))
    assert worker.again(late.message).take() is not None  # and its worker dies, too
    worker.finish(late, before)
    last = worker.again(late.message)
    worker.finish(last, last.take())
    assert feed.forecast("s1").version == 2
    assert not redis.exists(part_key("taken", feed._uid))


def test_an_error_of_one_series_is_its_own_and_all_updates_follow_their_schema(feed, worker):
    feed.append(all_bars())
    work = worker.take()
    payload = work.take()
    at_fault, *others = [series["id"] for series in payload["series"]]
    error = JobError(ErrorCode.BAD_VALUE, "series.0.close: no", "series.0.close")
    assert work.end(error) is error
    worker.run()
    assert feed.forecast(at_fault).error.code == ErrorCode.BAD_VALUE
    assert all(feed.forecast(name).forecast for name in others)
    row = feed.latest().set_index("id").loc[at_fault]
    assert (row["error"], row["is_current"]) == ("BAD_VALUE", False)
    schema = json.loads((DOCS / "schemas" / "feed-update.json").read_text())
    for update in feed.updates(after="0", timeout_s=0.01):
        jsonschema.validate(json.loads(update.model_dump_json()), schema | {"additionalProperties": False})


def first_block(feed: Feed, name: str) -> str:
    (read,) = feed._store.read(feed._uid, [name])
    return read.record.blocks[0].name


def test_lost_bars_fail_their_series_alone(feed, worker, redis):
    naive = all_bars()
    feed.append(naive.assign(ds=naive["ds"].dt.tz_localize(None)))  # so that none is overdue
    redis.hdel(part_key("blocks", feed._uid), first_block(feed, "s2"))
    worker.run()
    assert {name: feed.forecast(name).error and feed.forecast(name).error.code for name in NAMES} == {
        name: "FEED_GONE" if name == "s2" else None for name in NAMES
    }
    is_current = feed.latest().set_index("id")["is_current"]
    assert is_current[~is_current].index.tolist() == ["s2"]


@pytest.mark.parametrize("lost", ["block", "record"])
def test_a_series_whose_bars_are_lost_is_replaced(feed, worker, redis, redis_server, lost):
    feed.append(all_bars())
    worker.run()
    records = f"kronos:feed_series:{feed._uid}"
    if lost == "block":
        redis.hdel(part_key("blocks", feed._uid), first_block(feed, "s2"))
    else:
        redis.hdel(records, "s2")
    with Feed.open("f", url=redis_server.url) as fresh:  # which has read no blocks
        found = error_of(lambda: fresh.append(pd.concat([bars(name, 1, 20) for name in ("s2", "s1")])))
        assert (found.code, found.details) == ("FEED_GONE", {"feed": "f", "series": "s2", "lost": ["s2"]})
        assert "replace()" in found.message
        assert len(fresh.bars("s1")["close"]) == 21  # it has its own bars, whatever became of others
        assert fresh.replace(bars("s2", 21)).changed == ("s2",)
        assert fresh.append(bars("s2", 1, 21)).num_new == 1
        worker.run()
        assert fresh.forecast("s2").last_time == fresh.bars("s2")["timestamps"][-1]
        assert len(fresh.bars("s2")["close"]) == 22


def test_an_append_takes_the_bars_of_all_series_but_the_lost_ones(client, monkeypatch):
    with client.feed("f", **OPTIONS) as feed:
        feed.append(all_bars())
        read = feed._store.read

        def without_two(uid: str, names: list[str]) -> list[Read]:
            both = zip(names, read(uid, names), strict=True)
            return [found._replace(record=None) if name in ("s2", "s5") else found for name, found in both]

        with monkeypatch.context() as patch:
            patch.setattr(feed._store, "read", without_two)
            for _ in range(2):
                assert error_of(lambda: feed.append(all_bars(21))).details["lost"] == ["s2", "s5"]
        assert {name: len(feed.bars(name)["close"]) for name in NAMES} == {
            name: 20 if name in ("s2", "s5") else 21 for name in NAMES
        }


def test_a_series_whose_version_is_lost_is_forecast_again(feed, worker, redis):
    for first in range(3):
        feed.append(bars("s1", 20, first))
        worker.run()
    redis.hdel(f"kronos:feed_versions:{feed._uid}", "s1")
    feed.append(bars("s1", 1, 23))
    worker.run()
    assert feed.forecast("s1").last_time == feed.bars("s1")["timestamps"][-1]


def test_a_message_that_was_removed_is_sent_again(feed, worker, redis):
    feed.append(all_bars())
    redis.delete(LIST)
    feed.append(bars("s1", 1, first=20))
    assert redis.llen(LIST) == 0  # it may be taken already
    job, _, _ = redis.hget("kronos:feed:f", "waiting").rpartition(" ")
    redis.hset("kronos:feed:f", "waiting", f"{job} 1000.0")
    feed.append(bars("s1", 1, first=21))
    worker.run()
    assert len(feed.latest().dropna(subset="close_mean")) == len(NAMES)


def test_a_pools_waiting_work_includes_what_its_feeds_series_make(feed, worker, redis):
    def state() -> QueueState:
        return queue_states(redis, 100)["cpu"]

    assert state() == QueueState({"high": 0, "normal": 0, "low": 0}, 0, 0, 0.0, 0)
    feed.append(all_bars())
    redis.zadd(f"kronos:feed_due:{feed._uid}", {"s0": 1.0})
    assert (state().lengths["normal"], state().of_feeds) == (3, 3)  # 9 series of 128 paths, 512 in a job
    assert state().oldest_s > 1e9
    assert worker.take().take() is not None
    assert (state().lengths["normal"], state().of_feeds) == (2, 2)
    assert state().oldest_s < 1e9
    worker.run()
    assert (state().lengths["normal"], state().of_feeds, state().oldest_s) == (0, 0, 0.0)


def test_bars_wait_for_a_gpu_worker(redis, redis_server):
    with Feed.open("f", url=redis_server.url, device="cuda", allow_fallback=False, pred_len=3) as feed:
        assert feed.append(bars("s1")).changed == ("s1",)
    assert redis.llen("gpu.feed\x06\x163") == 1


def test_full_queues_refuse_jobs_but_no_bars(redis, redis_server, worker):
    settings = ClientSettings(redis_url=redis_server.url, max_queue_jobs=1)
    redis.lpush("cpu.feed\x06\x166", *["another"] * 3)
    with ForecastClient(settings=settings) as client, client.feed("f", **OPTIONS) as feed:
        job = {"candles": candles(1, 60).as_dict(), "pred_len": 2}
        client.submit(**job)
        with pytest.raises(JobError, match="QUEUE_FULL"):
            client.submit(**job)
        for first in (0, 20, 21):
            assert feed.append(all_bars(20 if first == 0 else 1, first)).changed == tuple(NAMES)
        with pytest.raises(JobError, match="QUEUE_FULL"):
            client.submit(**job)
        worker.run()
        assert {feed.forecast(name).version for name in NAMES} == {3}


def test_a_name_may_look_like_a_place_of_the_message(redis_server, worker):
    for name in ('@ID@ "num_series": -1, %1', "é@NUM@\\"):
        with Feed.open(name, url=redis_server.url, **OPTIONS) as feed:
            feed.append(bars("s1"))
            worker.run()
            assert feed.forecast("s1").forecast is not None
            feed.delete()


STEPS = st.lists(st.sampled_from(["bar", "bar", "take", "begin", "end", "end", "lose", "error"]), max_size=40)


def follow(steps: list[str], workers: list[HandWorker], redis: Redis, append: Callable[[int], None]) -> None:
    """Take, begin, end, lose and fail jobs on two workers in turns, then compute all that is left."""
    messages, begun = [], []
    for number, step in enumerate(steps):
        worker = workers[number % 2]
        if step == "bar":
            append(number)
        elif step == "take" and (work := worker.take()) is not None:
            messages.append(work)
        elif step == "begin" and messages:
            work = messages.pop(0)
            begun.append((work, work.take()))
        elif step in ("end", "error") and begun:
            work, payload = begun.pop()
            error = JobError(ErrorCode.DEADLINE, "late", "deadline_s")
            _ = work.end(error) if step == "error" else worker.finish(work, payload)
        elif step == "lose" and begun:  # its worker dies: the message is delivered again
            work, _ = begun.pop(0)
            redis.rpush(LIST, json.dumps(work.message))
    for work in [*messages, *(work for work, _ in begun)]:
        redis.rpush(LIST, json.dumps(work.message))
    workers[0].run()


@given(STEPS)
@settings(max_examples=40, deadline=None)
def test_every_newest_bar_is_forecast_whatever_happens_to_jobs(redis_server, steps):
    redis = connect(redis_server.url)
    redis.flushall()
    workers, next_bar = [HandWorker(redis, redis_server.url) for _ in range(2)], dict.fromkeys(NAMES, 20)
    with Feed.open("f", url=redis_server.url, **OPTIONS) as feed:

        def append(number: int) -> None:
            name = NAMES[(7 * number) % len(NAMES)]
            feed.append(bars(name, 1, first=next_bar[name]))
            next_bar[name] += 1

        feed.append(all_bars())
        follow(steps, workers, redis, append)
        assert (
            redis.zcard(f"kronos:feed_due:{feed._uid}") == redis.hlen(f"kronos:feed_taken:{feed._uid}") == 0
        )
        assert {name: feed.forecast(name).version for name in NAMES} == {
            name: next_bar[name] - 19 for name in NAMES
        }
        versions: dict[str, list[int]] = {}
        for update in feed.updates(after="0", timeout_s=0.01):
            versions.setdefault(update.series, []).append(update.version)
        assert all(sorted({*known}) == known for known in versions.values())
