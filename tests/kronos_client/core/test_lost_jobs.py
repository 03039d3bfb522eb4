"""A job whose message is gone without an outcome raises LOST, and no other job does."""

import asyncio
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import SHARED_PREFIX, job_key, result_key
from kronos_client.core import result_events, result_store
from kronos_client.core.result_events import ResultEvents
from kronos_client.core.result_store import RedisResultStore
from kronos_client.core.stored import Stored
from kronos_client.redis.admission import Admission
from kronos_client.redis.connection import connect
from kronos_client.redis.job_store import Ending, JobStore
from kronos_client.redis.queues import DELIVERY_KEYS, list_key
from kronos_client.redis.routing import announce, withdraw
from kronos_client.settings import ClientSettings
from kronos_client.testing import fake_worker
from tests.admitting import admit
from tests.kronos_client.core.test_result_store import on_a_store
from tests.taking import begin_one, take_one
from tests.waiting import WAIT_S
from worker.broker.deliveries import Deliveries

STARTED = '{"status": "STARTED"}'
LIST = list_key("cpu", 3)
KEYS = DELIVERY_KEYS["forecast"]
TIMEOUT_S = 60.0


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_store, "SEEN_FOR_S", 0.1)
    monkeypatch.setattr(result_events, "LOOK_INTERVAL_S", 0.02)


@pytest.fixture
def admission(redis: Redis) -> Admission:
    return Admission(redis, result_ttl_s=100, max_queue_jobs=10)


@pytest.fixture
def store(redis: Redis) -> JobStore:
    return JobStore(redis, 100, KEYS)


@pytest.fixture
def deliveries(redis: Redis, redis_server) -> Deliveries:
    redis = connect(redis_server.url, decode_responses=False)
    return Deliveries(redis, KEYS, timeout_s=TIMEOUT_S, max_bytes=10_000)


def live(redis: Redis, queue: str = "cpu", **fields: Any) -> None:
    announce(redis, fake_worker(queue, **{"versions": {"kronos": "1"}, "node": queue} | fields))


def at(redis: Redis, ended_ago_s: float, timeout_s: float = 0.01, tag: str = "x") -> str:
    """The place of a message whose delivery ran out so long ago."""
    return f"held {redis.time()[0] - ended_ago_s:.6f} {timeout_s} {tag}"


def outcome_of(url: str, job_id: str = "a", num_reads: int = 20) -> str | None:
    """What waiting for the job raises; None if it goes on after many reads."""

    async def run() -> str | None:
        reads = 0
        store = RedisResultStore(ClientSettings.load(redis_url=url, result_ttl_s=100), connect(url))
        read = store.read

        async def counted(job_ids: Any) -> list[Stored]:
            nonlocal reads
            reads += 1
            return await read(job_ids)

        store.read = counted  # type: ignore[method-assign]
        events = ResultEvents(store)
        waiting = asyncio.create_task(_last(events, job_id))
        try:
            async with asyncio.timeout(WAIT_S):
                while reads < num_reads and not waiting.done():
                    await asyncio.sleep(0.01)
            return await waiting if waiting.done() else None
        except JobError as error:
            return str(error.code)
        finally:
            await events.close()

    return asyncio.run(run())


async def _last(events: ResultEvents, job_id: str) -> str:
    return [stored.status async for stored in events.states(job_id)][-1]


def test_a_message_that_went_to_the_dead(redis, redis_server, admission, store, deliveries):
    admit(admission, "a")
    tag = take_one(deliveries, [LIST]).tag
    begin_one(store, "a", STARTED, tag, TIMEOUT_S)
    assert outcome_of(redis_server.url) is None
    store.end([Ending("a", "", tag, "an entry")])
    assert redis.hget(job_key("a"), "at") == "none"
    assert outcome_of(redis_server.url) == ErrorCode.LOST
    assert admit(admission, "a")
    assert outcome_of(redis_server.url) is None


def test_a_message_that_another_program_took_from_a_list_that_others_keep_full(
    redis, redis_server, admission, deliveries
):
    live(redis)
    for job_id in "abcd":
        admit(admission, job_id)
    redis.lrem(LIST, 1, redis.lindex(LIST, -2))
    tag = [take_one(deliveries, [LIST]).tag for _ in "ac"][-1]
    deliveries.put_back(tag)
    assert outcome_of(redis_server.url, "b") is None
    take_one(deliveries, [LIST])
    assert outcome_of(redis_server.url, "b", num_reads=200) == ErrorCode.LOST
    assert [outcome_of(redis_server.url, job_id) for job_id in "acd"] == [None] * 3


def test_a_message_behind_others_that_another_program_put_in_front_is_not_lost(
    redis, redis_server, admission, deliveries
):
    live(redis)
    for job_id in "ab":
        admit(admission, job_id)
    redis.rpush(LIST, *[redis.lindex(LIST, -1)] * 3)
    for _ in range(3):
        take_one(deliveries, [LIST])
    assert int(redis.hget("kronos:taken", LIST)) == 3  # more than came before b
    assert outcome_of(redis_server.url, "b", num_reads=20) is None


@pytest.mark.parametrize("is_worker_there", [False, True])
@pytest.mark.parametrize(
    "remove",
    [
        lambda redis: redis.delete(LIST),
        lambda redis: redis.rename(LIST, "elsewhere"),
        lambda redis: redis.ltrim(LIST, 1, 0),
        lambda redis: redis.rpop(LIST),
    ],
    ids=["DEL", "RENAME", "LTRIM", "RPOP"],
)
def test_a_message_that_another_program_took_from_its_list(
    redis, redis_server, admission, remove, is_worker_there
):
    if is_worker_there:
        live(redis)
    admit(admission, "a")
    assert outcome_of(redis_server.url) is None
    remove(redis)
    assert outcome_of(redis_server.url, num_reads=200) == ErrorCode.LOST
    assert admit(admission, "a")
    assert outcome_of(redis_server.url) is None


def test_a_list_that_is_empty_because_a_worker_took_the_job(redis, redis_server, admission, deliveries):
    live(redis)
    admit(admission, "a")
    deliveries.put_back(take_one(deliveries, [LIST]).tag)
    assert outcome_of(redis_server.url) is None
    take_one(deliveries, [LIST])
    assert redis.llen(LIST) == 0
    assert outcome_of(redis_server.url) is None


@pytest.mark.parametrize("delay_s", [None, 0.0, 1000.0])
def test_a_message_that_was_deleted_while_its_worker_was_dead(
    redis, redis_server, admission, store, deliveries, delay_s
):
    admit(admission, "a")
    tag = take_one(deliveries, [LIST]).tag
    begin_one(store, "a", STARTED, tag, TIMEOUT_S)
    if delay_s is not None:
        store.release("a", tag)
        redis.hset(job_key("a"), "holder", "x")  # of an earlier attempt that is gone
        deliveries.put_back(tag, 1000.0)
    redis.hdel(KEYS.unacked, tag)
    redis.zincrby(KEYS.renewed, -3000, tag)
    deliveries.restore_overdue()
    assert outcome_of(redis_server.url) == ErrorCode.LOST


def test_a_shared_job_that_is_lost_is_computed_again(redis, admission, store, deliveries):
    job_id = f"{SHARED_PREFIX}1"
    admit(admission, job_id)
    tag = take_one(deliveries, [LIST]).tag
    begin_one(store, job_id, STARTED, tag, TIMEOUT_S)
    assert not admit(admission, job_id)
    redis.hset(job_key(job_id), "at", at(redis, 2 * TIMEOUT_S - 5, TIMEOUT_S))
    assert not admit(admission, job_id)
    redis.hset(job_key(job_id), "at", at(redis, 2 * TIMEOUT_S + 5, TIMEOUT_S))
    assert admit(admission, job_id)


def test_a_delivery_that_ran_out_long_ago(redis, redis_server):
    redis.hset(job_key("a"), mapping={"list": LIST, "at": at(redis, 60)})
    redis.set(result_key("a"), STARTED)
    assert outcome_of(redis_server.url) is None  # no worker could put it back
    live(redis, state="loading")
    live(redis, "cpu.finetune")
    assert outcome_of(redis_server.url) is None
    live(redis)
    assert outcome_of(redis_server.url) == ErrorCode.LOST
    live(redis, node="old", versions={"python": "3.13"})
    assert outcome_of(redis_server.url) is None
    redis.hset(job_key("a"), "at", "none")
    assert outcome_of(redis_server.url) is None
    withdraw(redis, "old")
    assert outcome_of(redis_server.url) == ErrorCode.LOST


def test_a_job_of_an_unknown_queue_needs_workers_of_both_roles(redis, redis_server):
    redis.hset(job_key("a"), "at", at(redis, 60))
    live(redis)
    assert outcome_of(redis_server.url) is None
    live(redis, "cpu.finetune")
    assert outcome_of(redis_server.url) == ErrorCode.LOST


def record(redis: Redis, **fields: Any) -> dict[str, Any]:
    return {"fingerprint": "x", "list": LIST, "received_at": redis.time()[0]} | fields


@pytest.mark.parametrize(
    "fields",
    [
        lambda redis: {},  # of release 0.1.0
        lambda redis: {"at": f"list {LIST}"},
        lambda redis: {"at": f"delayed {redis.time()[0] - 1e6:.6f} {LIST}"},
        lambda redis: {"at": at(redis, -60, 60)},
        lambda redis: {"at": at(redis, 100, 60)},  # a worker may put it back soon
        lambda redis: {"at": at(redis, 12)},  # the worker that is announced may have died with it
        lambda redis: {"at": at(redis, 200, 60), "renewed_at": redis.time()[0]},  # its worker lives
        lambda redis: {"at": "none", "ended_at": redis.time()[0]},  # its outcome may be on the way
    ],
)
def test_what_is_not_lost(redis, redis_server, fields):
    live(redis)
    redis.lpush(LIST, "a message")
    redis.hset(job_key("a"), mapping=record(redis, **fields(redis)))
    redis.hset(job_key("gone"), mapping=record(redis, at="none"))
    assert outcome_of(redis_server.url) is None
    assert outcome_of(redis_server.url, "gone") == ErrorCode.LOST


@pytest.mark.parametrize(
    "value", [b"\xff", b"", b"nan", b"held", b"held nan nan x", b"held 1 -inf x", b"held 9e9 1 x"]
)
@pytest.mark.parametrize("name", ["at", "ended_at", "renewed_at", "list"])
def test_fields_that_another_program_wrote_end_no_waiting(redis, redis_server, name, value):
    live(redis)
    redis.hset(job_key("a"), mapping=record(redis, at=at(redis, -60, 60)) | {name: value})
    assert outcome_of(redis_server.url, num_reads=5) is None


def test_a_record_of_another_type_concerns_its_own_job_only(redis, redis_server):
    live(redis)
    redis.lpush(job_key("a"), "another app's")
    assert outcome_of(redis_server.url, num_reads=5) is None
    redis.set(result_key("a"), '{"status": "SUCCESS"}')
    assert outcome_of(redis_server.url) == "SUCCESS"


def test_a_message_that_is_seen_elsewhere_in_between_is_not_lost(redis, redis_server, monkeypatch):
    """As after an outage of Redis or of all workers: a worker renews or puts back what it held."""
    clock = [100.0]
    monkeypatch.setattr(result_store.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(result_store, "SEEN_FOR_S", 2.0)
    live(redis)
    seem = at(redis, 1000, 60)
    redis.hset(job_key("a"), mapping=record(redis, at=seem))

    async def body(store: RedisResultStore) -> None:
        async def is_lost(after_s: float) -> bool:
            clock[0] += after_s
            (stored,) = await store.read(["a"])
            return stored.absence is not None

        assert [await is_lost(30) for _ in range(2)] == [False, False]
        redis.hset(job_key("a"), "at", f"list {LIST}")
        assert not await is_lost(30)
        redis.hset(job_key("a"), "at", seem)
        assert [await is_lost(30) for _ in range(3)] == [False, False, True]
        withdraw(redis, "cpu")
        assert not await is_lost(30)
        live(redis)
        assert [await is_lost(30) for _ in range(3)] == [False, False, True]
        redis.hset(job_key("a"), "at", "none")
        assert [await is_lost(1.5) for _ in range(3)] == [False, False, True]

    on_a_store(redis_server.url, body)


def test_a_redis_that_did_not_answer_begins_the_time_again(redis, redis_server, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(result_store.time, "monotonic", lambda: clock[0])
    redis.hset(job_key("a"), mapping=record(redis, at="none"))

    async def refuse(*_: Any, **__: Any) -> None:
        raise RedisConnectionError

    async def body(store: RedisResultStore) -> None:
        await store.read(["a"])
        with monkeypatch.context() as away:
            away.setattr(RedisResultStore, "_ask", refuse)
            with pytest.raises(RedisConnectionError):
                await store.read(["a"])
        clock[0] += 1000
        assert (await store.read(["a"]))[0].absence is None
        clock[0] += 1000
        (stored,) = await store.read(["a"])
        assert stored.absence.details == {"job_id": "a"}
        assert "safe to submit again" in stored.absence.message

    on_a_store(redis_server.url, body)


def test_jobs_in_order_cost_two_commands_for_their_list(redis, redis_server):
    redis.lpush(LIST, "a message")
    redis.hset(job_key("a"), mapping=record(redis, at=f"list {LIST}"))
    redis.hset(job_key("b"), mapping=record(redis, at=at(redis, -60, 60)))

    async def body(store: RedisResultStore) -> None:
        await store.read(["a"])
        redis.config_resetstat()
        for _ in range(3):
            await store.read(["a", "b"])

    on_a_store(redis_server.url, body)
    calls = {name.removeprefix("cmdstat_"): one["calls"] for name, one in redis.info("commandstats").items()}
    assert {
        name: calls.get(name) for name in ("hgetall", "getrange", "llen", "hmget", "eval", "time", "zrange")
    } == {
        "hgetall": 6,
        "getrange": 6,
        "llen": 3,
        "hmget": 3,
        "eval": None,
        "time": 3,
        "zrange": None,
    }
