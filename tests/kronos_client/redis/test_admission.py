"""Which jobs are admitted to a queue, and the errors of the others."""

import json
import threading
from contextlib import suppress

import pytest
from celery import Celery
from celery._state import _task_stack
from kombu import Connection, Queue
from redis import Redis
from redis.exceptions import RedisError

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import (
    CPU_FINETUNE_QUEUE,
    CPU_QUEUE,
    EVENT_EXCHANGE,
    GPU_QUEUE,
    SHARED_KEY,
    SHARED_PREFIX,
    job_key,
    jobs_key,
)
from kronos_client.redis.admission import MAX_RETRY_S, UNKNOWN_RATE_RETRY_S, Admission, retry_after_s
from kronos_client.redis.job_store import Ending, JobStore
from kronos_client.redis.queues import delivery_keys, list_key, list_keys
from tests.admitting import admit
from tests.taking import begin_one
from tests.waiting import WAIT_S

LIMIT = 10
OTHER_JOB = '{"pred_len":6}'
STARTED = '{"status": "STARTED"}'
DONE = '{"status": "SUCCESS"}'


@pytest.fixture
def admission(redis) -> Admission:
    return Admission(redis, result_ttl_s=100, max_queue_jobs=LIMIT, jobs_per_s=lambda queue: 2.0)


@pytest.fixture
def records(redis) -> JobStore:
    return JobStore(redis, 100, delivery_keys("test.unacked"))


def refusal(*arguments, **options) -> JobError:
    with pytest.raises(JobError) as refused:
        admit(*arguments, **options)
    return refused.value


def fill(redis, queue: str = CPU_QUEUE) -> None:
    """Up to the limit, over all priorities."""
    for key, num in zip(list_keys(queue), (1, 2, 3, 4), strict=True):
        redis.lpush(key, *["x"] * num)


def test_a_queue_is_full_when_all_its_lists_together_are(admission, redis):
    fill(redis)
    redis.rpop(list_key(CPU_QUEUE, 6))
    assert admit(admission, "a")
    error = refusal(admission, "b")
    assert error.code == ErrorCode.QUEUE_FULL
    assert error.details == {"queue": "cpu", "length": 10, "limit": 10, "retry_after_s": 1}
    assert admit(admission, "b", queue=GPU_QUEUE)


def test_the_newest_admitted_jobs_are_listed_by_kind(admission, redis, monkeypatch):
    monkeypatch.setattr("kronos_client.redis.admission.MAX_LISTED", 2)
    for job_id in "abca":
        admit(admission, job_id)
    admit(admission, "d", queue=CPU_FINETUNE_QUEUE, kind="backtest")
    assert redis.zrange(jobs_key("forecast"), 0, -1) == ["c", "a"]
    assert redis.zrange(jobs_key("backtest"), 0, -1) == ["d"]


def test_what_is_refused_leaves_nothing_behind(admission, redis):
    fill(redis)
    refusal(admission, "a")
    assert not redis.exists(job_key("a"))
    redis.delete(*list_keys(CPU_QUEUE))
    assert admit(admission, "a", OTHER_JOB)


def test_a_job_that_has_its_outcome_needs_no_room(admission, records, redis):
    admit(admission, "a")
    records.end([Ending("a", DONE)])
    fill(redis)
    assert not admit(admission, "a")
    redis.hset(job_key("a"), "ended_at", "1000")  # its result is no longer kept: it would be computed anew
    error = refusal(admission, "a")
    assert error.code == ErrorCode.QUEUE_FULL
    assert "before" not in error.message


def test_a_job_that_a_worker_has_begun_is_not_refused_and_not_sent_again(admission, records, redis):
    admit(admission, "a")
    begin_one(records, "a", STARTED, "tag", 60.0)
    fill(redis)
    assert not admit(admission, "a")
    redis.delete(*list_keys(CPU_QUEUE))
    assert admit(admission, "a")


def test_a_job_that_may_wait_in_the_full_queue_already_is_told_so(admission, redis):
    admit(admission, "a")
    fill(redis)
    error = refusal(admission, "a")
    assert error.code == ErrorCode.QUEUE_FULL
    assert "was submitted before under this job_id and may be one of them" in error.message
    assert "before" not in refusal(admission, "b").message


def test_another_jobs_id_is_a_conflict_in_a_full_queue_too(admission, redis):
    admit(admission, "a")
    fill(redis)
    assert refusal(admission, "a", OTHER_JOB).code == ErrorCode.ID_CONFLICT


def test_the_rate_is_asked_only_where_the_queue_is_full(redis):
    asked: list[str] = []
    admission = Admission(
        redis, result_ttl_s=100, max_queue_jobs=LIMIT, jobs_per_s=lambda queue: asked.append(queue) or 1.0
    )
    admit(admission, "a")
    assert not asked
    fill(redis)
    refusal(admission, "b")
    assert asked == ["cpu"]


@pytest.mark.parametrize("had_record", [False, True])
@pytest.mark.parametrize(
    "command", ["lpush", "hset", "expire", "zadd", "zremrangebyrank", "publish", "hdel", "del"]
)
def test_what_redis_refuses_leaves_neither_message_nor_record(
    redis, redis_server, records, command, had_record
):
    """Except for announcing the job, every command is needed."""
    if had_record:
        admit(Admission(redis, result_ttl_s=100, max_queue_jobs=LIMIT), "a")
        records.end([Ending("a", DONE)])
        redis.hset(job_key("a"), "ended_at", 1)  # its result is no longer kept
        redis.delete(*list_keys(CPU_QUEUE))
    before = redis.hgetall(job_key("a"))
    redis.acl_setuser(
        "app", enabled=True, reset=True, passwords=["+pw"], keys=["*"], channels=["*"],
        categories=["+@all"], commands=[f"-{command}"],
    )  # fmt: skip
    place = redis_server.url.rpartition("@")[2]
    with Redis.from_url(f"redis://app:pw@{place}", decode_responses=True) as app:
        admission = Admission(app, result_ttl_s=100, max_queue_jobs=LIMIT)
        with suppress(RedisError):
            assert admit(admission, "a")
    num_sent, record = redis.llen(list_key(CPU_QUEUE, 3)), redis.hgetall(job_key("a"))
    assert num_sent == ("list" in record.get("at", ""))
    assert num_sent or record.items() <= before.items()
    assert num_sent == (command == "publish" or (command == "hdel" and not had_record))
    redis.acl_deluser("app")
    assert admit(Admission(redis, result_ttl_s=100, max_queue_jobs=LIMIT), "a")
    assert redis.llen(list_key(CPU_QUEUE, 3)) == num_sent + 1


def test_a_full_redis_accepts_no_job(admission, redis):
    redis.config_set("maxmemory", "1")
    try:
        for _ in range(2):
            with pytest.raises(RedisError, match="memory"):
                admit(admission, "a")
    finally:
        redis.config_set("maxmemory", "0")
    assert redis.keys() == []


def test_a_job_that_a_celery_task_sends_names_that_task(admission, redis):
    @Celery(set_as_current=False).task(name="app.nightly")
    def task() -> None: ...

    task.push_request(id="outer", root_id="root", called_directly=False)
    _task_stack.push(task)
    try:
        admit(admission, "a")
    finally:
        _task_stack.pop()
    admit(admission, "b")
    (b, a) = (json.loads(text)["headers"] for text in redis.lrange(list_key(CPU_QUEUE, 3), 0, -1))
    assert (a["root_id"], a["parent_id"]) == ("root", "outer")
    assert (b["root_id"], b["parent_id"]) == ("b", None)


def test_kombu_reads_the_message_and_the_event(admission, redis, redis_server):
    seen = []
    with Connection(redis_server.url, transport_options={"priority_steps": [0, 3, 6, 9]}) as connection:
        channel = connection.default_channel
        channel.exchange_declare(EVENT_EXCHANGE, "fanout")
        channel.queue_declare("events")
        channel.queue_bind("events", EVENT_EXCHANGE, "task.#")
        for queue in ("events", "cpu"):
            consumer = connection.Consumer(
                [Queue(queue)], callbacks=[lambda body, message: seen.append((body, message))], no_ack=True
            )
            consumer.consume()
        with suppress(TimeoutError):
            connection.drain_events(timeout=0.2)
        content = '{"series":[{"id":"é"}]}'
        admit(admission, "ä 1", content, kwargsrepr="{'series': 'é'}")
        while len(seen) < 2:
            connection.drain_events(timeout=WAIT_S)
    (event, _), (body, message) = sorted(seen, key=lambda one: isinstance(one[0], list))
    admitted_at = float(redis.hget(job_key("ä 1"), "admitted_at"))
    workflow = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    assert body == [[], {"job": {**json.loads(content), "submitted_at": admitted_at}}, workflow]
    assert message.headers["id"] == message.properties["correlation_id"] == event["uuid"] == "ä 1"
    assert (event["type"], event["name"], event["queue"]) == ("task-sent", "kronos.forecast", "cpu")
    assert event["kwargs"] == message.headers["kwargsrepr"] == "{'series': 'é'}"


@pytest.mark.parametrize(
    ("length", "limit", "jobs_per_s", "expected_s"),
    [
        (10_000, 10_000, 50.0, 20),  # a tenth, which is 1000 jobs
        (10_500, 10_000, 50.0, 30),
        (5, 5, 2.0, 1),  # a single job, where a tenth is less than one
        (10_000, 10_000, 0.001, MAX_RETRY_S),
        (10_000, 10_000, 0.0, UNKNOWN_RATE_RETRY_S),
    ],
)
def test_the_time_to_try_again_is_until_a_tenth_is_free(length, limit, jobs_per_s, expected_s):
    assert retry_after_s(length, limit, jobs_per_s) == expected_s


def test_senders_at_once_never_exceed_the_limit(admission, redis):
    def send(number: int) -> None:
        for attempt in range(LIMIT):
            with suppress(JobError):
                admit(admission, f"{number}-{attempt}")

    threads = [threading.Thread(target=send, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert redis.llen(list_key(CPU_QUEUE, 3)) == LIMIT


def test_a_shared_job_is_sent_until_a_worker_has_it_and_again_if_it_failed(admission, records, redis):
    job_id = f"{SHARED_PREFIX}a"

    def is_sent() -> bool:
        return admit(admission, job_id)

    assert [is_sent(), is_sent()] == [True, True]  # the first sender may have died before it sent it
    begin_one(records, job_id, STARTED, "tag", 10)
    assert not is_sent()
    records.end([Ending(job_id, '{"status": "FAILURE"}', "tag")])
    assert is_sent()
    assert begin_one(records, job_id, STARTED, "another", 10).lost == 0
    records.end([Ending(job_id, DONE, "another")])
    assert not is_sent()
    assert int(redis.get(SHARED_KEY)) == 3
    assert admit(admission, "b")
    assert int(redis.get(SHARED_KEY)) == 3
