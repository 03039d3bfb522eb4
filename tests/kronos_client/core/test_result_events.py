"""Many that wait for jobs need two connections, no threads, and find what was missed."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from functools import partial
from typing import Any

import pytest
from redis import Redis

from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import job_key, result_key
from kronos_client.core import result_events
from kronos_client.core.kinds import FORECAST
from kronos_client.core.result_events import ResultEvents
from kronos_client.core.result_store import RedisResultStore
from kronos_client.core.stored import Stored
from kronos_client.redis.connection import connect
from kronos_client.settings import ClientSettings
from tests.ports import free_port

TTL_S = 3600
WAIT_S = 20


def store(redis: Redis, job_id: str, status: str, *, is_published: bool, result: Any = None) -> None:
    meta = json.dumps({"status": status, "result": result})
    redis.set(result_key(job_id), meta)
    if is_published:
        redis.publish(result_key(job_id), meta)


def with_events(url: str, body: Callable[[ResultEvents], Coroutine[Any, Any, None]], **options: Any) -> None:
    """Run ``body`` with the events of that Redis."""

    async def run() -> None:
        settings = ClientSettings.load(redis_url=url, result_ttl_s=TTL_S)
        events = ResultEvents(
            RedisResultStore(settings, connect(settings.redis_url.get_secret_value())), **options
        )
        try:
            async with asyncio.timeout(WAIT_S + 10):
                await body(events)
        finally:
            await events.close()

    asyncio.run(run())


@pytest.fixture
def submitted(redis: Redis) -> None:
    """The job ``a`` was submitted."""
    redis.hset(job_key("a"), "fingerprint", "x")


async def ended(states: AsyncGenerator[Stored, None]) -> list[str]:
    return [stored.status async for stored in states]


def test_what_was_stored_before_is_known_at_once(redis_server, redis):
    store(redis, "a", "SUCCESS", is_published=False)

    async def body(events: ResultEvents) -> None:
        assert await ended(events.states("a", timeout_s=0)) == ["SUCCESS"]

    with_events(redis_server.url, body)


def test_what_was_not_published_is_found_by_looking(redis_server, redis, monkeypatch, submitted):
    monkeypatch.setattr(result_events, "LOOK_INTERVAL_S", 0.01)

    async def body(events: ResultEvents) -> None:
        states = events.states("a", WAIT_S)
        assert (await anext(states)).status == "PENDING"
        store(redis, "a", "SUCCESS", is_published=False)
        assert await ended(states) == ["SUCCESS"]

    with_events(redis_server.url, body)


def test_each_state_is_given_once(redis_server, redis, submitted):
    async def body(events: ResultEvents) -> None:
        seen = []
        async for stored in events.states("a", WAIT_S):
            seen.append((stored.status, stored.value))
            if stored.status == "PENDING":
                store(redis, "a", "PROGRESS", is_published=True, result={"bars_done": 1})
            elif stored.value == {"bars_done": 1}:
                for bars_done in (1, 1, 2):
                    store(redis, "a", "PROGRESS", is_published=True, result={"bars_done": bars_done})
            elif stored.status == "PROGRESS":
                store(redis, "a", "SUCCESS", is_published=True)
        assert [status for status, _ in seen] == ["PENDING", "PROGRESS", "PROGRESS", "SUCCESS"]
        assert seen[1][1] != seen[2][1]

    with_events(redis_server.url, body)


def test_two_deliveries_of_a_job_start_it_once_for_its_submitter(redis_server, redis, submitted):
    async def body(events: ResultEvents) -> None:
        seen = []
        async for stored in events.states("a", WAIT_S, FORECAST.state_of):
            seen.append(stored.status)
            if len(seen) < 3:
                store(redis, "a", "STARTED", is_published=True, result={"pid": len(seen)})
            if len(seen) == 2:
                asyncio.get_running_loop().call_later(
                    0.1, partial(store, redis, "a", "SUCCESS", is_published=True)
                )
        assert seen == ["PENDING", "STARTED", "SUCCESS"]

    with_events(redis_server.url, body)


def test_a_job_that_redis_forgot_is_lost(redis_server, redis, monkeypatch, submitted):
    monkeypatch.setattr(result_events, "LOOK_INTERVAL_S", 0.01)
    store(redis, "a", "STARTED", is_published=False)

    async def body(events: ResultEvents) -> None:
        states = events.states("a", WAIT_S)
        assert (await anext(states)).status == "STARTED"
        redis.flushall()
        with pytest.raises(JobError, match=ErrorCode.LOST):
            await anext(states)

    with_events(redis_server.url, body)


def test_a_result_that_is_no_longer_kept_is_not_waited_for(redis_server, redis):
    redis.hset(job_key("a"), "ended_at", redis.time()[0] - TTL_S - 10)
    redis.hset(job_key("b"), "ended_at", redis.time()[0])  # its result may be on its way

    async def body(events: ResultEvents) -> None:
        with pytest.raises(JobError, match=ErrorCode.RESULT_EXPIRED):
            await anext(events.states("a", WAIT_S))
        assert (await anext(events.states("b", WAIT_S))).status == "PENDING"

    with_events(redis_server.url, body)


def test_two_that_wait_for_one_job_both_receive_its_states(redis_server, redis, submitted):
    async def body(events: ResultEvents) -> None:
        first, second = events.states("a", WAIT_S), events.states("a", WAIT_S)
        for states in (first, second):
            assert (await anext(states)).status == "PENDING"
        assert events.num_jobs == 1
        store(redis, "a", "STARTED", is_published=True)
        assert (await anext(second)).status == "STARTED"
        await second.aclose()
        store(redis, "a", "SUCCESS", is_published=True)
        assert (await ended(first))[-1] == "SUCCESS"
        assert events.num_jobs == 0

    with_events(redis_server.url, body)


@pytest.mark.parametrize("text", [b"{", b"\xff", b"[]"])
def test_what_cannot_be_read_does_not_end_the_waiting(redis_server, redis, text, submitted):
    async def body(events: ResultEvents) -> None:
        states = events.states("a", WAIT_S)
        await anext(states)
        redis.publish(result_key("a"), text)
        store(redis, "a", "SUCCESS", is_published=True)
        assert (await ended(states))[-1] == "SUCCESS"

    with_events(redis_server.url, body)


def test_a_redis_that_comes_back_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(result_events, "LOOK_INTERVAL_S", 0.05)
    port = free_port()
    with LocalRedis(port=port, data=tmp_path) as first:
        url = first.url
        with connect(url) as redis:
            redis.hset(job_key("a"), "fingerprint", "x")

    async def body(events: ResultEvents) -> None:
        waiting = asyncio.create_task(ended(events.states("a")))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        with LocalRedis(port=port, data=tmp_path), connect(url) as redis:
            store(redis, "a", "SUCCESS", is_published=False)
            assert (await waiting)[-1] == "SUCCESS"

    with_events(url, body)


def test_a_redis_that_stays_away_is_an_error(monkeypatch):
    monkeypatch.setattr(result_events, "LOOK_INTERVAL_S", 0.05)

    async def body(events: ResultEvents) -> None:
        with pytest.raises(JobError, match=ErrorCode.BROKER_UNREACHABLE) as error:
            await ended(events.states("a"))
        assert error.value.details == {"job_id": "a"}

    with_events(f"redis://127.0.0.1:{free_port()}/0", body, away_for_s=0.3)


def test_a_wait_in_vain_does_not_take_longer_than_it_may(monkeypatch):
    """Whether the job is done is not known: that Redis is away is the error, not TIMEOUT."""
    monkeypatch.setattr(result_events, "FIRST_LOOK_S", 0.1)

    async def body(events: ResultEvents) -> None:
        with pytest.raises(JobError, match=ErrorCode.BROKER_UNREACHABLE):
            await ended(events.states("a", timeout_s=0.2))

    with_events(f"redis://127.0.0.1:{free_port()}/0", body)


def test_all_waiting_ends_where_it_is_released(redis_server, submitted):
    async def body(events: ResultEvents) -> None:
        waiting = [asyncio.create_task(ended(events.states("a"))) for _ in range(3)]
        while events.num_jobs == 0:
            await asyncio.sleep(0.01)
        events.release()
        for one in waiting:
            assert "SUCCESS" not in await one
        assert await ended(events.states("a")) == []

    with_events(redis_server.url, body)


def test_a_lost_connection_is_made_again_and_all_jobs_are_read_at_once(redis_server, redis, monkeypatch):
    monkeypatch.setattr(result_events, "LOOK_INTERVAL_S", 1000.0)
    redis.hset(job_key("a"), "fingerprint", "x")

    async def body(events: ResultEvents) -> None:
        states = events.states("a", WAIT_S)
        assert (await anext(states)).status == "PENDING"
        store(redis, "a", "SUCCESS", is_published=False)
        redis.client_kill_filter(_type="pubsub")
        assert await ended(states) == ["SUCCESS"]

    with_events(redis_server.url, body)
