"""Second lists, for large jobs that have to wait, on a real Redis."""

import pytest
from redis import Redis

from kronos_client.contract.names import job_key
from kronos_client.redis.admission import Admission
from kronos_client.redis.connection import connect
from kronos_client.redis.job_store import Ending, JobStore
from kronos_client.redis.queues import (
    DELIVERY_KEYS,
    TAKEN_KEY,
    large_key,
    list_key,
    queue_states,
    return_large,
)
from tests.admitting import admit
from tests.taking import take_one
from worker.broker.deliveries import Deliveries

KEYS = DELIVERY_KEYS["forecast"]
NORMAL = list_key("cpu", 3)
LARGE = large_key(NORMAL)
TIMEOUT_S = 60.0
DONE = '{"status": "FAILURE"}'


@pytest.fixture
def deliveries(redis: Redis, redis_server) -> Deliveries:
    return Deliveries(
        connect(redis_server.url, decode_responses=False), KEYS, timeout_s=TIMEOUT_S, max_bytes=10_000
    )


def message(job_id: str) -> str:
    return f'{{"body": "…", "properties": {{"correlation_id": "{job_id}"}}}}'


def move_to_large(redis: Redis, deliveries: Deliveries, *job_ids: str) -> None:
    for job_id in job_ids:
        redis.lpush(NORMAL, message(job_id))
        deliveries.move_to_large(take_one(deliveries, [NORMAL]).tag)


def taken(deliveries: Deliveries, *lists: str, min_age_s: float = 0.0) -> list[bytes]:
    found = []
    while delivery := take_one(deliveries, lists, [min_age_s] * len(lists)):
        found.append(delivery.message)
    return found


def test_a_repeated_command_moves_nothing(redis, deliveries):
    redis.lpush(NORMAL, message("a"))
    tag = take_one(deliveries, [NORMAL]).tag
    deliveries.move_to_large(tag)
    deliveries.move_to_large(tag)
    assert redis.llen(LARGE) == 1


def test_a_job_that_comes_back_from_a_worker_is_next_on_its_second_list_and_overdue(redis, deliveries):
    move_to_large(redis, deliveries, "a", "b")
    first = take_one(deliveries, [LARGE])
    redis.zincrby(KEYS.renewed, -TIMEOUT_S - 1, first.tag)
    assert deliveries.restore_overdue() == 1
    assert redis.hget(TAKEN_KEY, LARGE) == "0"
    assert taken(deliveries, LARGE, min_age_s=30) == [message("a").encode()]
    assert taken(deliveries, LARGE) == [message("b").encode()]


def test_what_stands_before_a_message_of_a_first_list_is_its_own(redis, deliveries):
    redis.lpush(NORMAL, "1.5\nx")
    assert taken(deliveries, NORMAL, min_age_s=30) == [b"1.5\nx"]


def test_a_job_that_is_move_to_large_counts_in_the_queue_unless_it_is_cancelled(redis, deliveries):
    admission = Admission(redis, result_ttl_s=60, max_queue_jobs=3)
    for job_id in ("a", "b", "c"):
        assert admit(admission, job_id)
        redis.lpop(NORMAL)
        move_to_large(redis, deliveries, job_id)
    assert redis.hget(job_key("b"), "at") == f"list {LARGE}"
    assert queue_states(redis, 3)["cpu"].lengths == {"high": 0, "normal": 3, "low": 0}
    with pytest.raises(Exception, match="its limit is 3"):
        admit(admission, "d")
    JobStore(redis, 60).end([Ending("b", DONE)])
    assert queue_states(redis, 3)["cpu"].lengths["normal"] == 2
    assert admit(admission, "d")


def test_delayed_jobs_count_in_the_queue_and_those_that_are_due(redis, deliveries):
    redis.lpush(NORMAL, *"ab")
    for delay_s in (1000, 2000):
        deliveries.put_back(take_one(deliveries, [NORMAL]).tag, delay_s)
    state = queue_states(redis, 9)["cpu"]
    assert (sum(state.lengths.values()), state.delayed, state.due) == (0, 2, 0)
    redis.zincrby(f"kronos:delayed:{NORMAL}", -1001, redis.zrange(f"kronos:delayed:{NORMAL}", 0, 0)[0])
    assert queue_states(redis, 9)["cpu"].due == 1
    with pytest.raises(Exception, match="its limit is 2"):
        admit(Admission(redis, result_ttl_s=60, max_queue_jobs=2), "c")


def test_the_age_of_the_oldest_job_is_that_of_its_admission(redis, deliveries):
    admission = Admission(redis, result_ttl_s=60, max_queue_jobs=9)
    for job_id, by_s in (("old", 500), ("new", 100)):
        admit(admission, job_id)
        redis.hincrbyfloat(job_key(job_id), "admitted_at", -by_s)
    redis.lpush(list_key("gpu", 3), message("another client's"), "no JSON")
    states = queue_states(redis, 9)
    assert states["cpu"].oldest_s == pytest.approx(500, abs=5)
    assert states["gpu"].oldest_s == 0
    redis.delete(job_key("old"))
    redis.lpush(job_key("old"), "another app's")
    assert queue_states(redis, 9)["cpu"].oldest_s == 0


def test_large_jobs_can_be_returned_to_where_release_0_1_0_finds_them(redis, deliveries):
    redis.lpush(NORMAL, message("last"))
    redis.lpush(LARGE, f"1.5\n{message('held')}", f"2.5\n{message('a')}", message("b"))
    held = take_one(deliveries, [LARGE])
    assert return_large(redis) == 3
    assert not redis.exists(LARGE)
    deliveries.put_back(held.tag)
    expected = [message(job_id).encode() for job_id in ("held", "a", "b", "last")]
    assert taken(deliveries, NORMAL) == expected
    assert return_large(redis) == 0
    assert redis.hgetall(TAKEN_KEY) == {NORMAL: "1", LARGE: "3"}


def test_returned_jobs_are_found_where_they_are(redis, deliveries):
    admission = Admission(redis, result_ttl_s=60, max_queue_jobs=9)
    for job_id in ("held", "later", "a", "b"):
        admit(admission, job_id)
        redis.lpop(NORMAL)
        move_to_large(redis, deliveries, job_id)
    held, later = take_one(deliveries, [LARGE]), take_one(deliveries, [LARGE])
    deliveries.put_back(later.tag, 1000)
    admit(admission, "new")
    assert return_large(redis) == 4
    assert redis.zrange(f"kronos:delayed:{NORMAL}", 0, -1) == [later.tag]
    assert not redis.exists(f"kronos:delayed:{LARGE}")
    place = redis.hget(job_key("later"), "at")
    assert (place[:8], place.split(" ", 2)[2]) == ("delayed ", NORMAL)
    deliveries.put_back(held.tag)
    for job_id, num_left in (("b", 3), ("held", 2), ("new", 1)):
        JobStore(redis, 60).end([Ending(job_id, DONE)])
        assert queue_states(redis, 100)["cpu"].lengths["normal"] == num_left
    assert len(taken(deliveries, NORMAL)) == 4
    redis.zadd(f"kronos:delayed:{NORMAL}", {later.tag: 1})
    assert taken(deliveries, NORMAL) == [message("later").encode()]
