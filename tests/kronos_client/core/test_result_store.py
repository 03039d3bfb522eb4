"""What is read of a job, over one connection that also receives what is published."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from redis import Redis

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import job_key, result_key
from kronos_client.core.result_store import MAX_SHORT_BYTES, RedisResultStore
from kronos_client.core.stored import NOTHING, encode_state
from kronos_client.redis.admission import Admission
from kronos_client.redis.connection import connect
from kronos_client.redis.job_store import Ending, JobStore
from kronos_client.redis.queues import DELIVERY_KEYS, list_key, queue_states
from kronos_client.settings import ClientSettings
from tests.admitting import admit
from tests.taking import begin_one, take_one
from worker.broker.deliveries import Deliveries


def test_a_job_without_result_is_lost_expired_or_still_to_come(redis_server, redis):
    ttl_s = 50
    admission = Admission(redis, result_ttl_s=ttl_s, max_queue_jobs=10)
    records = JobStore(redis, ttl_s)

    def absence(waits_in: str | None = None) -> str | None:
        async def read() -> str | None:
            store = RedisResultStore(
                ClientSettings.load(redis_url=redis_server.url, result_ttl_s=ttl_s), redis
            )
            (stored,) = await store.read(["a"])
            await store.close()
            assert stored._replace(absence=None, queue=None) == NOTHING
            assert stored.queue == waits_in
            return stored.absence and stored.absence.code

        return asyncio.run(read())

    def submit() -> None:
        admit(admission, "a")

    assert absence() == ErrorCode.LOST
    submit()
    assert redis.ttl(job_key("a")) > 24 * 3600  # however long the queue is
    assert absence(waits_in="cpu") is None
    records.end([Ending("a", b"{}")])
    redis.delete(result_key("a"))
    assert absence() is None  # its result may be on the way
    redis.hincrbyfloat(job_key("a"), "ended_at", -ttl_s - 1)  # as if it had ended before
    assert absence() == ErrorCode.RESULT_EXPIRED
    submit()
    assert absence(waits_in="cpu") is None


def test_only_a_job_that_waits_is_ended_by_a_reader_after_its_deadline(redis_server, redis):
    keys, raw = DELIVERY_KEYS["forecast"], connect(redis_server.url, decode_responses=False)
    admission = Admission(redis, result_ttl_s=50, max_queue_jobs=10)
    workers, deliveries = JobStore(redis, 50, keys), Deliveries(raw, keys, timeout_s=60, max_bytes=10_000)
    for job_id, deadline_s in (("taken", 0.0), ("begun", 0.0), ("waits", 0.0), ("early", 60.0)):
        assert admit(admission, job_id, deadline_s=deadline_s)
    tags = [take_one(deliveries, [list_key("cpu", 3)]).tag for _ in range(2)]
    begin_one(workers, "begun", encode_state("begun", "STARTED", {}), tags[1], 60)
    read: dict[str, str | None] = {}

    async def body(store: RedisResultStore) -> None:
        ids = ["taken", "begun", "waits", "early"]
        found = await store.read(ids)
        read.update(
            {job_id: getattr(stored.value, "code", None) for job_id, stored in zip(ids, found, strict=True)}
        )

    on_a_store(redis_server.url, body)
    assert read == {"taken": None, "begun": None, "waits": ErrorCode.DEADLINE, "early": None}
    assert (
        sum(queue_states(redis, 10, ["cpu"])["cpu"].lengths.values()) == 1
    )  # the message that stays does not count
    tag = take_one(deliveries, [list_key("cpu", 3)]).tag
    with pytest.raises(JobError, match="DEADLINE"):
        begin_one(workers, "waits", "{}", tag, 60)
    assert workers.end([Ending("begun", encode_state("begun", "SUCCESS", 1), tags[1])]) == ["stored"]


def on_a_store(url: str, body: Callable[[RedisResultStore], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        store = RedisResultStore(ClientSettings.load(redis_url=url), connect(url))
        await body(store)
        await store.close()

    asyncio.run(run())


def store_states(redis: Redis, number: int) -> list[str]:
    """Store a state of each of so many jobs, in which its id is the result."""
    ids = [f"job-{place}" for place in range(number)]
    for job_id in ids:
        redis.set(result_key(job_id), encode_state(job_id, "SUCCESS", job_id))
    return ids


def test_each_of_many_reads_at_once_has_its_own_answers(redis_server, redis):
    ids = store_states(redis, 50)

    async def body(store: RedisResultStore) -> None:
        received: list[str] = []
        store.start(lambda job_id, stored: received.append(stored.value))
        reads = []
        for job_id in ids:
            store.awaited.add(job_id)
            reads.append(asyncio.create_task(store.read([job_id])))
            redis.publish(result_key(ids[0]), encode_state(ids[0], "SUCCESS", "published"))
        assert [[one.value for one in found] for found in await asyncio.gather(*reads)] == [
            [one] for one in ids
        ]
        store.awaited.clear()
        await store.read([])
        assert redis.pubsub_channels(result_key("*")) == []
        assert set(received) <= {"published"}

    on_a_store(redis_server.url, body)


@pytest.mark.parametrize("num_bytes", [MAX_SHORT_BYTES - 200, MAX_SHORT_BYTES, 5 * MAX_SHORT_BYTES])
def test_a_long_state_is_read_whole(redis_server, redis, num_bytes):
    texts = ["ä" * (num_bytes // 2), "short", "b" * num_bytes]
    for place, text in enumerate(texts):
        redis.set(result_key(str(place)), encode_state(str(place), "SUCCESS", text))

    async def body(store: RedisResultStore) -> None:
        assert [one.value for one in await store.read(["0", "1", "2"])] == texts
        assert await store.forget("2")

    on_a_store(redis_server.url, body)


def test_subscriptions_that_redis_refuses_leave_the_answers_in_order(redis_server, redis):
    ids = store_states(redis, 3)
    redis.acl_setuser(
        "reader", enabled=True, passwords=["+word"], keys=["*"], categories=["+@all"], reset_channels=True
    )
    url = f"redis://reader:word@{redis_server.url.rpartition('@')[2].removeprefix('redis://')}"

    async def body(store: RedisResultStore) -> None:
        store.awaited.update(ids)
        for _ in range(2):
            assert [one.value for one in await store.read(ids)] == ids
        redis.acl_setuser("reader", enabled=True, channels=["*"])
        await store.read(ids)
        assert len(redis.pubsub_channels(result_key("*"))) == 3  # tried again

    try:
        on_a_store(url, body)
    finally:
        redis.acl_deluser("reader")


@pytest.mark.parametrize("error", [AttributeError, TypeError])
def test_a_connection_that_is_lost_before_it_is_written_to_is_made_again(redis_server, redis, error):
    """redis-py then raises what its writer of None does, or the transport's error from Python 3.12 on."""
    ids = store_states(redis, 2)

    async def body(store: RedisResultStore) -> None:
        await store.read(ids)
        write = store._connection._send_packed_command

        async def write_late(command: Any) -> None:
            store._connection._send_packed_command = write
            await store._connection.disconnect(nowait=True)
            await asyncio.sleep(0)  # the receiver learns of it
            if error is TypeError:
                raise TypeError("'NoneType' object is not callable")
            await write(command)

        store._connection._send_packed_command = write_late
        assert [one.value for one in await store.read(ids)] == ids

    on_a_store(redis_server.url, body)


def test_a_connection_that_the_server_closed_is_made_again(redis_server, redis):
    ids = store_states(redis, 3)

    async def body(store: RedisResultStore) -> None:
        store.awaited.update(ids[:2])
        await store.read(ids)
        for _ in range(5):
            redis.client_kill_filter(_type="pubsub", skipme=True)
            assert [one.value for one in await store.read(ids)] == ids
            assert len(redis.pubsub_channels(result_key("*"))) == 2

    on_a_store(redis_server.url, body)
