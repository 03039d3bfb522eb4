"""Which jobs are admitted to a queue, and the errors of the others."""

import threading

import pytest

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.job_ids import SHARED_PREFIX
from kronos_client.contract.names import (
    CPU_FINETUNE_QUEUE,
    CPU_QUEUE,
    GPU_QUEUE,
    SHARED_KEY,
    job_key,
    jobs_key,
)
from kronos_client.redis.admission import MAX_RETRY_S, UNKNOWN_RATE_RETRY_S, Admission, retry_after_s
from kronos_client.redis.job_store import Ending, JobStore
from kronos_client.redis.queues import delivery_keys, list_key, list_keys
from tests.waiting import WAIT_S

LIMIT = 10
JOB = {"pred_len": 5}
OTHER_JOB = {"pred_len": 6}
STARTED = '{"status": "STARTED"}'
DONE = '{"status": "SUCCESS"}'


@pytest.fixture
def admission(redis) -> Admission:
    return Admission(redis, result_ttl_s=100, max_queue_jobs=LIMIT)


@pytest.fixture
def records(redis) -> JobStore:
    return JobStore(redis, 100, delivery_keys("test.unacked"))


def admit(
    admission: Admission, job_id: str, payload=JOB, queue: str = CPU_QUEUE, rate: float = 2.0, **options
):
    return admission.admit(job_id, payload, queue, lambda: rate, **options)


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
    assert admit(admission, "a") is not None
    redis.lpush(list_key(CPU_QUEUE, 3), "a")
    error = refusal(admission, "b")
    assert error.code == ErrorCode.QUEUE_FULL
    assert error.details == {"queue": "cpu", "length": 10, "limit": 10, "retry_after_s": 1}
    assert admit(admission, "b", queue=GPU_QUEUE) is not None


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
    redis.delete(CPU_QUEUE)
    assert admit(admission, "a", OTHER_JOB) is not None


def test_a_job_that_has_its_outcome_needs_no_room(admission, records, redis):
    admit(admission, "a")
    records.end([Ending("a", DONE)])
    fill(redis)
    assert admit(admission, "a") is None
    redis.hset(job_key("a"), "ended_at", "1000")  # its result is no longer kept: it would be computed anew
    error = refusal(admission, "a")
    assert error.code == ErrorCode.QUEUE_FULL
    assert "before" not in error.message


def test_a_job_that_a_worker_has_begun_is_not_refused_and_not_sent_again(admission, records, redis):
    admit(admission, "a")
    records.begin("a", STARTED, "tag", 60.0)
    fill(redis)
    assert admit(admission, "a") is None
    redis.delete(CPU_QUEUE)
    assert admit(admission, "a") is not None


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


def test_the_rate_is_asked_only_where_the_queue_is_full(admission, redis):
    asked = threading.Event()
    admission.admit("a", JOB, CPU_QUEUE, lambda: asked.set() or 1.0)
    assert not asked.is_set()
    fill(redis)
    with pytest.raises(JobError):
        admission.admit("b", JOB, CPU_QUEUE, lambda: asked.set() or 1.0)
    assert asked.is_set()


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


def test_senders_at_once_exceed_the_limit_by_at_most_one_each(admission, redis):
    """Between being admitted and sending, each waits for all others: the worst case."""
    num_threads, num_admitted = 8, []
    barrier = threading.Barrier(num_threads)

    def send(number: int) -> None:
        for attempt in range(LIMIT):
            try:
                admit(admission, f"{number}-{attempt}")
                is_admitted = True
            except JobError:
                is_admitted = False
            barrier.wait(WAIT_S)
            if is_admitted:
                num_admitted.append(number)
                redis.lpush(CPU_QUEUE, "x")
            barrier.wait(WAIT_S)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert LIMIT <= len(num_admitted) <= LIMIT - 1 + num_threads
    assert redis.llen(CPU_QUEUE) == len(num_admitted) == 16


def test_a_shared_job_is_sent_until_a_worker_has_it_and_again_if_it_failed(admission, records, redis):
    job_id = f"{SHARED_PREFIX}a"

    def is_sent() -> bool:
        return admit(admission, job_id) is not None

    assert [is_sent(), is_sent()] == [True, True]  # the first sender may have died before it sent it
    records.begin(job_id, STARTED, "tag", 10)
    assert not is_sent()
    records.end([Ending(job_id, '{"status": "FAILURE"}', "tag")])
    assert is_sent()
    assert records.begin(job_id, STARTED, "another", 10).lost == 0
    records.end([Ending(job_id, DONE, "another")])
    assert not is_sent()
    assert int(redis.get(SHARED_KEY)) == 3
    assert admit(admission, "b") is not None
    assert int(redis.get(SHARED_KEY)) == 3
