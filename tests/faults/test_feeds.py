"""Feeds under faults: every bar once, every newest bar forecast, and each update in order.

Two apps append the same bars, one of them over HTTP, and each repeats what was not answered. A third reads
all updates.
"""

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import numpy as np
import pandas as pd
import pytest
from celery import Celery

from kronos_cli.commands import replay
from kronos_cli.stack.local_redis import find_redis_server
from kronos_client.client import ForecastClient
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.feed import FeedUpdate
from kronos_client.contract.names import FEED_APPEND_TASK
from kronos_client.feeds import options
from kronos_client.feeds.feed import Feed
from kronos_client.feeds.stored import feed_key, part_key
from kronos_client.redis.queues import FEED, list_key
from kronos_model.bars.columns import COLUMNS
from kronos_model.bars.synthetic import candles
from tests.api_process import ApiUnderTest
from tests.faults.conftest import Note
from tests.faults.error_replies import ERRORS, Case, each_case
from tests.faults.fleet import Fleet, Worker
from tests.faults.proxy import FaultyProxy, Rule
from tests.faults.redis_under_fault import RedisUnderFault
from tests.kronos_client.feeds.test_scores import OPTIONS as FORECAST
from tests.kronos_client.feeds.test_scores import check
from tests.waiting import WAIT_S, await_true

NAMES = [f"s{number}" for number in range(5)]
WINDOW = 24
OPTIONS: dict[str, Any] = {**FORECAST, "max_bars": WINDOW, "keep": COLUMNS, "calibration": "adaptive"}
PAUSE_S = 0.05
"""Between two bars."""
AGAIN = (ErrorCode.BROKER_UNREACHABLE, ErrorCode.FEED_BUSY, ErrorCode.REDIS_CLUSTER)
IS_LOST = (ErrorCode.FEED_GONE, ErrorCode.FEED_NOT_FOUND)
"""The feed is not there any more, which over HTTP nobody has opened before."""
NUM_BARS = 50_000
NUM_ROUNDS = 20
JUMPS_S = (-90_000, -7_200, 0, 7_200, 90_000)
"""Of a clock: by more than a day, and by two hours, either way."""
OOM, BUSY, CLUSTERDOWN = ERRORS[4], ERRORS[0], ERRORS[10]


def made(name: str) -> pd.DataFrame:
    columns = candles(seed=NAMES.index(name), bars=NUM_BARS).columns
    times = pd.date_range("2024-01-01", periods=NUM_BARS, freq="min").strftime("%Y-%m-%dT%H:%MZ")
    return pd.DataFrame({"unique_id": name, "ds": times, **columns})


class HttpFeed:
    """What an app of the HTTP API does: it creates a feed and appends to it."""

    def __init__(self, api: ApiUnderTest, name: str) -> None:
        self._url = f"{api.url}v1/feeds/{quote(name)}"
        self._send("PUT", "", OPTIONS)

    def append(self, bars: pd.DataFrame) -> None:
        series = [
            {"id": name, "timestamps": list(rows["ds"])} | {title: list(rows[title]) for title in COLUMNS}
            for name, rows in bars.groupby("unique_id")
        ]
        self._send("POST", "/bars", {"series": series})

    def _send(self, method: str, path: str, body: dict[str, Any]) -> None:
        try:
            answer = httpx2.request(method, self._url + path, json=body, timeout=WAIT_S)
        except httpx2.TransportError as error:
            raise JobError(ErrorCode.BROKER_UNREACHABLE, str(error)) from error
        if answer.is_error:
            raise JobError(ErrorCode(answer.json()["code"]), answer.text)

    def close(self) -> None:
        """It keeps no connection."""


class Clocks:
    """The clocks of Redis and of a worker, which jump; files hold how far each is ahead, in seconds."""

    def __init__(self, folder: Path) -> None:
        self._of_redis, self._of_worker = folder / "redis-clock", folder / "worker-clock"
        self.set(0, 0)
        self.of_worker = {
            "PYTHONPATH": str(Path(__file__).parent / "jumping_clock"),
            "JUMPING_CLOCK": str(self._of_worker),
        }

    def set(self, redis_s: int, worker_s: int) -> None:
        self._of_redis.write_text(f"{redis_s:+d}\n")
        self._of_worker.write_text(str(worker_s))

    def redis_server(self, path: Path) -> Path:
        """A program that runs the packaged redis-server with this clock.

        Debian's takes memory by a library that cannot start under libfaketime.
        """
        (library,) = Path("/usr/lib").glob("*/faketime/libfaketime.so.1")
        environment = (
            f"LD_PRELOAD={library} FAKETIME_TIMESTAMP_FILE={self._of_redis} FAKETIME_CACHE_DURATION=1 "
            "FAKETIME_DONT_FAKE_MONOTONIC=1"
        )
        path.write_text(f'#!/bin/sh\n{environment} exec {find_redis_server("")} "$@"\n')
        path.chmod(0o755)
        return path


class Universe:
    """A feed with its appenders and its reader, each on a thread with a connection of its own.

    Args:
        url: Where they reach Redis, perhaps with errors.
        api: What the second appender asks.
    """

    def __init__(self, redis: RedisUnderFault, url: str, api: ApiUnderTest, name: str) -> None:
        self.name, self._url, self._api = name, url, api
        self.bars = {series: made(series) for series in NAMES}
        self.ends = [WINDOW, WINDOW]  # of each appender
        self.seen: dict[str, list[FeedUpdate]] = {}  # by the feed's uid
        self.errors: list[JobError] = []
        self.num_lost = 0
        self.has_seen_all = True  # else more updates came in a fault than Redis keeps
        self._is_over = threading.Event()
        self._failure: Exception | None = None
        works: list[tuple[Callable[..., None], int]] = [
            (self._append, 0),
            (self._append, 1),
            (self._follow, 0),
        ]
        self._threads = [threading.Thread(target=self._run, args=work, daemon=True) for work in works]
        self.feed = Feed.open(name, url=redis.url, **OPTIONS)  # the test's own
        self._redis = redis
        for thread in self._threads:
            thread.start()

    def _run(self, work: Callable[..., None], number: int) -> None:
        try:
            work(number)
        except Exception as error:  # noqa: BLE001 - reported to the test's own thread
            self._failure = error

    def _again(self, call: Callable[..., Any], *args: object) -> Any:
        """The call's answer, as an app should ask for it: again, if Redis gave none."""
        while True:
            try:
                return call(*args)
            except JobError as error:
                self.errors.append(error)
                if error.code not in AGAIN:
                    raise
                time.sleep(PAUSE_S)

    def _open(self) -> Feed:
        return self._again(lambda: Feed.open(self.name, url=self._url, **OPTIONS))

    def _append(self, number: int) -> None:
        open_feed = (self._open, lambda: self._again(HttpFeed, self._api, self.name))[number]
        feed = open_feed()
        first = 0
        while True:
            end = self.ends[number]
            bars = pd.concat([bars[first:end] for bars in self.bars.values()])
            try:
                self._again(feed.append, bars)
            except JobError as error:
                if error.code not in IS_LOST:
                    raise
                feed.close()
                feed, first = open_feed(), end - WINDOW
                continue
            if self._is_over.wait(PAUSE_S):
                break
            self.ends[number] = min(end + 1, min(self.ends) + WINDOW // 2)  # neither leaves a gap
            # Over HTTP nobody learns that the feed was made anew.
            first = self.ends[number] - (WINDOW if number else 1)
        feed.close()

    def _follow(self, _: int) -> None:
        feed, after, found = self._open(), "0", []
        while not self._is_over.is_set() or found:
            try:
                found = self._again(feed.next_updates, after, PAUSE_S)
            except JobError as error:
                if error.code != ErrorCode.FEED_GONE:
                    raise
                feed.close()
                feed, after, found = self._open(), "0", []
                continue
            self.seen.setdefault(feed._uid, []).extend(found)
            after = found[-1].id if found else after
        feed.close()

    def versions(self) -> dict[str, int]:
        """By series the version of its newest update."""
        newest = self.feed._store.latest(self.feed._uid)
        return {series: update.version for series, update in newest.items()}

    def await_progress(self) -> float:
        """Wait until each series has a forecast of a bar that was not there before. Returns the seconds."""
        before = dict(zip(NAMES, self.feed._store.read(self.feed._uid, NAMES), strict=True))
        return await_true(
            lambda: (
                self._is_alive()
                and all(self.versions().get(name, 0) > read.version for name, read in before.items())
            ),
            "all series have newer forecasts",
        )

    def _is_alive(self) -> bool:
        if self._failure is not None:
            raise self._failure
        return True

    def forget_all(self) -> None:
        """Redis loses everything, and the apps find that out."""
        self._redis.connection.flushall()
        self.num_lost += 1
        old = self.feed._uid
        await_true(lambda: self._is_alive() and (self.feed._store.find(self.name) or [old])[0] != old)
        self.feed.close()
        self.feed = Feed.open(self.name, url=self._redis.url)

    def deliver_twice(self) -> None:
        """Send a copy of the newest message, which waits, is held, or has ended."""
        message, number = self._redis.connection.hmget(feed_key(self.name), "message", "num_jobs")
        for word, value in (("ID", f"feed-{self.feed._uid}-{number}"), ("NUM", "1"), ("TIME", "1.0")):
            message = message.replace(f"@{word}@", value)
        assert json.loads(message)
        self._redis.connection.rpush(list_key(f"cpu{FEED}", 3), message)

    def append_last(self) -> None:
        """Append a bar of each series, after which none comes."""
        end = self.ends[0] = max(self.ends) + 1
        self.feed.append(pd.concat([bars[end - WINDOW : end] for bars in self.bars.values()]))

    def stop(self) -> None:
        """Have the appenders and then the reader end."""
        self._is_over.set()
        for thread in self._threads:
            thread.join(WAIT_S)
        assert not any(thread.is_alive() for thread in self._threads), "an app hangs"
        self._is_alive()

    def assert_balanced(self, client: ForecastClient) -> None:
        """All that must hold in the end."""
        feed, raw = self.feed, self._redis.connection
        self.stop()
        newest = dict(zip(NAMES, feed._store.read(feed._uid, NAMES), strict=True))
        await_true(
            lambda: self.versions() == {name: read.version for name, read in newest.items()},
            "every newest bar is forecast",
        )
        await_true(lambda: not raw.hlen(part_key("taken", feed._uid)), "no job holds a series")
        assert not raw.zcard(part_key("due", feed._uid))
        end = max(self.ends)
        for name, bars in self.bars.items():
            held, wanted = pd.DataFrame(feed.bars(name)), bars[end - WINDOW : end]
            assert list(held["timestamps"]) == list(wanted["ds"])
            assert np.array_equal(held[list(COLUMNS)], wanted[list(COLUMNS)].astype("float32"))
            update = feed.forecast(name)
            assert update.failure is None
            assert update.last_time == bars["ds"][end - 1]
            ours = update.forecast.manifest
            alone = replay._again(client, ours, feed.bars(name))
            assert (alone.bars, alone.forecast) == (ours.bars, ours.forecast)
        seen = self.seen[feed._uid]
        while missed := feed.next_updates(seen[-1].id if seen else "0", 0.01):
            seen += missed  # that came after the reader ended
        assert {update.series: update.version for update in seen} == self.versions()
        if self.has_seen_all:
            known = {
                name: bars[:end].assign(ds=pd.to_datetime(bars["ds"][:end]))
                for name, bars in self.bars.items()
            }
            check(feed, known, seen)
        for updates in self.seen.values():
            for name in NAMES:
                mine = [update for update in updates if update.series == name]
                ids = [[*map(int, update.id.split("-"))] for update in mine]
                versions = [update.version for update in mine]
                assert sorted(ids) == ids
                assert sorted({*versions}) == versions, name
                assert all(update.forecast or update.failure for update in mine)
        codes = {error.code for error in self.errors}
        assert codes <= {*AGAIN} | ({*IS_LOST} if self.num_lost else set())


@pytest.fixture(autouse=True)
def jobs_of_two_series(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that several jobs of a feed wait, run and end at once."""
    monkeypatch.setattr(options, "JOB_PATHS", 2 * FORECAST["sample_count"])


@pytest.fixture
def clocks(tmp_path: Path) -> Clocks:
    return Clocks(tmp_path)


@pytest.fixture
def redis(tmp_path: Path, clocks: Clocks) -> Iterator[RedisUnderFault]:
    """One whose clock jumps."""
    server = RedisUnderFault(tmp_path / "redis", clocks.redis_server(tmp_path / "redis-server"))
    yield server
    server.stop()


@pytest.fixture
def client_proxy(redis: RedisUnderFault) -> Iterator[FaultyProxy]:
    with FaultyProxy(redis.url) as proxy:
        yield proxy


@pytest.fixture
def api(client_proxy: FaultyProxy, tmp_path: Path, fleet: Fleet) -> Iterator[ApiUnderTest]:
    api = ApiUnderTest(client_proxy.url, tmp_path / "api.log", fleet.mark)
    yield api
    api.stop()


@pytest.fixture
def universe(redis: RedisUnderFault, client_proxy: FaultyProxy, api: ApiUnderTest) -> Iterator[Universe]:
    universe = Universe(redis, client_proxy.url, api, "us: 5 min")
    yield universe
    universe._is_over.set()


def test_faults_of_all_kinds(
    fleet: Fleet,
    redis: RedisUnderFault,
    proxy: FaultyProxy,
    client_proxy: FaultyProxy,
    client: ForecastClient,
    api: ApiUnderTest,
    clocks: Clocks,
    universe: Universe,
    at_length: bool,
    note: Note,
) -> None:
    dice = random.Random(20261126)

    def begin(*, is_jumping: bool) -> Worker:
        clock = clocks.of_worker if is_jumping else {}
        return fleet.begin(KRONOS_REDIS_URL=proxy.url, PACE_S="0.1", **clock)

    def kill() -> None:
        fleet.running[0].kill()
        for _ in range(2 - len(fleet.running)):  # one that starts while a cluster's errors are answered ends
            begin(is_jumping=at_length and dice.random() < 0.5)

    def jump_clocks() -> None:
        clocks.set(dice.choice(JUMPS_S), dice.choice(JUMPS_S))

    def restart() -> None:
        dice.choice([redis.stop, redis.kill])()
        redis.start()

    def answer_by_error() -> None:
        either = [proxy, client_proxy]
        for proxy_at_fault in dice.sample(either, dice.randint(1, 2)):
            proxy_at_fault.rules = [Rule(dice.choice(ERRORS), is_after=dice.random() < 0.5)]
        time.sleep(5.0 if at_length else 0.3)
        proxy.rules = client_proxy.rules = []

    kinds: list[Callable[[], object]] = [
        kill, api.kill_and_start, restart, answer_by_error, redis.kill_connections, universe.deliver_twice,
        universe.forget_all, jump_clocks,
    ]  # fmt: skip
    begin(is_jumping=True).wait_until_ready()
    begin(is_jumping=False).wait_until_ready()
    universe.has_seen_all = not at_length
    recoveries_s: dict[str, list[float]] = {}
    for _ in range(NUM_ROUNDS if at_length else 1):
        dice.shuffle(kinds)
        for fault in kinds:
            fault()
            recoveries_s.setdefault(fault.__name__, []).append(universe.await_progress())
    for name, each_s in recoveries_s.items():
        note(f"newer forecasts of all series after s: {name}", each_s)
    universe.stop()
    universe.append_last()
    await_true(
        lambda: redis.connection.hlen(part_key("taken", universe.feed._uid)), "the last bars are taken"
    )
    for _ in fleet.running:
        kill()
    universe.assert_balanced(client)
    note("updates", sum(map(len, universe.seen.values())))
    assert fleet.ended_without("REDIS_CLUSTER") == [], fleet.logs()


@pytest.mark.parametrize("fault", ["an error", "an error after it", "a restart"])
def test_the_append_of_a_plain_client_is_delivered_again(
    fleet: Fleet, redis: RedisUnderFault, proxy: FaultyProxy, fault: str
) -> None:
    fleet.start(KRONOS_REDIS_URL=proxy.url)
    bars = made("s0")[:WINDOW]
    series = {"id": "s0", "timestamps": [*bars["ds"]]} | {name: bars[name].tolist() for name in COLUMNS}
    app = Celery(broker=redis.url, backend=redis.url, set_as_current=False)
    with app, Feed.open("plain", url=redis.url, **OPTIONS) as feed:
        is_after = fault == "an error after it"
        feed.append(bars[:20])  # the script is known to Redis
        rule = Rule(OOM, lambda request: request.script == "feed_append", is_after)
        proxy.rules = [rule]
        job = {"feed": "plain", "series": [series]}
        sent = app.send_task(FEED_APPEND_TASK, kwargs={"job": job}, queue="cpu")
        await_true(lambda: rule.num_hits, "it fails")
        if fault == "a restart":
            redis.kill()
            time.sleep(1)
            redis.start()
        proxy.rules = []
        counts = {"num_corrected": 0, "num_held_back": 0, "held_until": None, "warnings": []}
        new = {"num_new": 0, "changed": []} if is_after else {"num_new": WINDOW - 20, "changed": ["s0"]}
        assert sent.get(timeout=WAIT_S) == new | counts
        (read,) = feed._store.read(feed._uid, ["s0"])
        assert (read.version, read.record.num_bars) == (2, WINDOW)
        assert list(feed.bars("s0")["timestamps"]) == list(bars["ds"])
        await_true(
            lambda: (update := feed.forecast("s0")) and update.version == read.version, "it is forecast"
        )


def test_generated_error_replies(
    fleet: Fleet,
    redis: RedisUnderFault,
    proxy: FaultyProxy,
    client_proxy: FaultyProxy,
    client: ForecastClient,
    api: ApiUnderTest,
    at_length: bool,
) -> None:
    numbers = iter(range(10**6))

    def run(case: Case) -> None:
        if not fleet.running:
            fleet.start(KRONOS_REDIS_URL=proxy.url, PACE_S="0")
        universe = Universe(redis, client_proxy.url, api, f"feed {next(numbers)}")
        try:
            (client_proxy if case.is_client else proxy).rules = [case.rule()]
            if case.is_cut:
                redis.kill_connections()
            universe.await_progress()
            proxy.rules = client_proxy.rules = []
            universe.assert_balanced(client)
            assert len(fleet.running) == 1, fleet.logs()
        finally:
            proxy.rules = client_proxy.rules = []
            universe.stop()
            universe.feed.delete()

    each_case(
        run,
        *((100, 12.0) if at_length else (1, 0.5)),
        Case("script feed_take", OOM, is_after=True, skip=1, lasts_s=0.3),
        Case("script feed_end", BUSY, is_after=True, skip=1, lasts_s=0.3),
        Case("script feed_append", BUSY, is_after=True, skip=2, lasts_s=0.3, is_client=True),
        Case("script feed_take", CLUSTERDOWN, is_after=True, skip=1, lasts_s=0.3),
        Case("script feed_end", CLUSTERDOWN, is_after=False, skip=1, lasts_s=0.3),
    )
