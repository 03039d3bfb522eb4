"""The messages of cancelled jobs stay until a worker drops them, and do not count in their queue."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis

from kronos_client.contract.errors import JobError
from kronos_client.contract.names import cancel_key, job_key, result_key
from kronos_client.redis.admission import Admission
from kronos_client.redis.connection import connect, read_bytes
from kronos_client.redis.job_store import Ending, JobStore
from kronos_client.redis.queues import (
    DELIVERY_KEYS,
    TAKEN_KEY,
    large_key,
    list_key,
    queue_states,
    return_large,
    waiting_keys,
)
from kronos_client.redis.scripts import read_script
from tests.admitting import admit
from tests.taking import begin_one, take_one
from tests.worker.broker.test_versions import RELEASE
from worker.broker.deliveries import Deliveries

KEYS = DELIVERY_KEYS["forecast"]
LISTS = [key for step in (3, 6) for key in (list_key("cpu", step), large_key(list_key("cpu", step)))]
TIMEOUT_S = 60.0
MIB = 2**20
CANCELLED = '{"status": "FAILURE"}'


def message(job_id: str, num_bytes: int = 0) -> str:
    return json.dumps({"body": "x" * num_bytes, "properties": {"correlation_id": job_id}})


class Service:
    """Clients, workers of this release and of 0.1.0, and their Redis."""

    def __init__(self, redis: Redis, url: str, max_queue_jobs: int = 1000) -> None:
        redis.flushall()
        self.redis = redis
        self.raw = connect(url, decode_responses=False)
        self.max_queue_jobs = max_queue_jobs
        self.admission = Admission(redis, result_ttl_s=100, max_queue_jobs=max_queue_jobs)
        self.client = JobStore(redis, 100)
        self.store = JobStore(redis, 100, KEYS)
        self.deliveries = Deliveries(self.raw, KEYS, timeout_s=TIMEOUT_S, max_bytes=10_000)
        self.old_take, self.old_requeue = (
            redis.register_script(read_script(name, RELEASE)) for name in ("take", "requeue")
        )
        self.num_sent = 0
        self.held: list[tuple[str, str]] = []
        self.saved: dict[bytes, bytes] = {}

    def send(self, low: bool, is_ours: bool = True, num_bytes: int = 0) -> str:
        self.num_sent += 1
        job_id = str(self.num_sent)
        if is_ours:
            assert admit(self.admission, job_id, priority="low" if low else "normal")
            self.redis.lpop(LISTS[2 * low])  # in its place comes one of the wanted size
        self.redis.lpush(LISTS[2 * low], message(job_id, num_bytes))
        return job_id

    def cancel(self, which: int) -> None:
        self.end(str(1 + which % max(1, self.num_sent)))

    def end(self, job_id: str) -> None:
        if self.redis.exists(job_key(job_id)):
            self.client.request_cancel(job_id)
            self.client.end([Ending(job_id, CANCELLED)])

    def take(self) -> None:
        delivery = take_one(self.deliveries, LISTS)
        if delivery is not None:
            self.held.append((delivery.tag, json.loads(delivery.message)["properties"]["correlation_id"]))

    def take_by_0_1_0(self) -> None:
        tag = f"old {self.num_sent} {len(self.held)} {self.redis.incr('test.tags')}"
        answer = self.old_take(
            keys=[KEYS.unacked, KEYS.renewed, TAKEN_KEY, *LISTS[::2]], args=[tag, 10_000, 9]
        )
        if answer is not None:
            self.held.append((tag, json.loads(answer[2])["properties"]["correlation_id"]))

    def with_held(self, what: str, which: int) -> None:
        if not self.held:
            return
        tag, job_id = self.held.pop(which % len(self.held))
        if what == "begin and drop":
            if begin_one(self.store, job_id, "{}", tag, TIMEOUT_S) == "ended":
                assert self.store.end([Ending(job_id, "", tag)]) != ["open"]
            else:
                self.store.end([Ending(job_id, '{"status": "SUCCESS"}', tag)])
        elif what == "die":
            self.redis.zincrby(KEYS.renewed, -3000, tag)
            self.deliveries.restore_overdue()
        elif what == "set aside":
            self.deliveries.move_to_large(tag)
        elif what == "put back by 0.1.0":
            self.old_requeue(keys=[KEYS.unacked, KEYS.renewed, TAKEN_KEY], args=[tag, 0, TIMEOUT_S])
        else:
            self.deliveries.put_back(tag, {"put back": 0.0, "delay": 1000.0, "delay shortly": 1e-6}[what])

    def purge(self) -> None:
        """As ``celery purge``."""
        self.redis.delete(*LISTS[::2])

    def return_large(self) -> None:
        return_large(self.redis, ["cpu"])

    def restart(self, how: str) -> None:
        if how == "save":
            self.saved = {key: self.raw.dump(key) for key in read_bytes(self.raw, "KEYS", "*")}
        else:  # what was written since is lost
            self.redis.flushall()
            self.held.clear()
            self.redis.script_flush()
            for key, value in self.saved.items():
                self.raw.restore(key, 0, value)

    def num_shown(self) -> int:
        return sum(queue_states(self.redis, self.max_queue_jobs, ["cpu"])["cpu"].lengths.values())

    def num_counted(self) -> int:
        """How many must count."""
        ids = [json.loads(text.split("\n")[-1])["properties"]["correlation_id"] for text in self.waiting()]
        num_cancelled = sum(bool(self.redis.hexists(job_key(job_id), "ended_at")) for job_id in ids)
        return len(ids) - min(num_cancelled, math.ceil(self.max_queue_jobs / 10))

    def waiting(self) -> list[str]:
        return [text for key in waiting_keys("cpu") for text in self.redis.lrange(key, 0, -1)]

    def drain(self) -> None:
        while delivery := take_one(self.deliveries, LISTS):
            self.store.end([Ending("", "", delivery.tag, "an entry")])


SENDS = st.tuples(st.just("send"), st.booleans(), st.sampled_from([True, True, False]))
CANCELS = st.tuples(st.just("cancel"), st.integers(0, 20))
HELD_STEPS = ["begin and drop", "die", "set aside", "put back", "delay", "delay shortly"]


def with_held(steps: list[str]) -> st.SearchStrategy[tuple[str, str, int]]:
    return st.tuples(st.just("with_held"), st.sampled_from(steps), st.integers(0, 3))


OTHERS = st.sampled_from([("return_large",), ("purge",), ("restart", "save"), ("restart", "back")])
TAKES = st.just(("take",))
HELD = with_held(HELD_STEPS) | with_held(["put back", "set aside"])
STEPS = st.sampled_from([SENDS, SENDS, SENDS, CANCELS, CANCELS, TAKES, TAKES, HELD, HELD, OTHERS]).flatmap(
    lambda kind: kind
)


@settings(max_examples=100)
@given(st.lists(st.tuples(STEPS, st.booleans()), min_size=15, max_size=60), st.sampled_from([10, 20, 1000]))
def test_all_but_cancelled_jobs_count_whatever_happens_to_their_messages(
    redis, redis_server, steps, max_queue_jobs
):
    service = Service(redis, redis_server.url)
    service.max_queue_jobs = max_queue_jobs
    for (name, *arguments), is_read in steps:
        getattr(service, name)(*arguments)
        if is_read or name == "purge":
            assert service.num_shown() == service.num_counted()
    assert service.num_shown() == service.num_counted()


OLD_TAKES = st.just(("take_by_0_1_0",))
STEPS_OF_BOTH = st.one_of(STEPS, STEPS, OLD_TAKES, with_held([*HELD_STEPS, "put back by 0.1.0"]))


@settings(max_examples=60)
@given(st.lists(st.tuples(STEPS_OF_BOTH, st.booleans()), min_size=15, max_size=60))
def test_beside_workers_of_0_1_0_the_count_is_right_again_once_the_queue_has_moved_on(
    redis, redis_server, steps
):
    service = Service(redis, redis_server.url)
    for (name, *arguments), is_read in steps:
        getattr(service, name)(*arguments)
        if is_read:
            assert 0 <= service.num_shown() <= len(service.waiting())
    service.drain()
    for _ in range(3):
        service.send(low=False)
    service.end(service.send(low=False))
    assert service.num_shown() == service.num_counted() == 3


@pytest.fixture
def service(redis, redis_server) -> Service:
    return Service(redis, redis_server.url, max_queue_jobs=20)


def test_a_full_queue_admits_as_many_as_were_cancelled_up_to_a_tenth(service):
    jobs = [service.send(low=bool(number % 2)) for number in range(20)]
    for job_id, num_free in zip(jobs[3:7], (1, 2, 2, 2), strict=True):
        service.end(job_id)
        assert service.num_shown() == 20 - num_free
    jobs += [service.send(low=True), service.send(low=False)]
    with pytest.raises(JobError, match="20 jobs wait in queue cpu, its limit is 20"):
        service.send(low=False)
    service.take()  # the next one counts
    service.send(low=False)


def test_only_64_mib_of_them_do_not_count(service):
    service.max_queue_jobs = 1000
    for _ in range(5):
        service.end(service.send(low=False, num_bytes=20 * MIB))
    assert service.num_shown() == 2
    service.end(service.send(low=True))
    assert service.num_shown() == 2
    for num_shown in (1, 0):
        service.take()
        assert service.num_shown() == num_shown
    service.purge()
    assert service.num_shown() == 0
    for num_shown in (0, 0, 0, 1):
        service.end(service.send(low=False, num_bytes=20 * MIB))
        assert service.num_shown() == num_shown


def test_a_cancelled_job_is_not_the_oldest_that_waits(service):
    for age_s in (500, 300, 100):
        job_id = service.send(low=False)
        service.redis.hincrbyfloat(job_key(job_id), "admitted_at", -age_s)
    for job_id, age_s in (("2", 500), ("1", 100), ("3", 0)):
        service.end(job_id)
        state = queue_states(service.redis, 1000, ["cpu"])["cpu"]
        assert state.oldest_s == pytest.approx(age_s, abs=5)


def test_a_job_that_was_cancelled_long_ago_is_not_computed(service):
    job_id = service.send(low=False)
    service.end(job_id)
    service.redis.delete(result_key(job_id))  # its outcome has expired
    service.take()
    ((tag, _),) = service.held
    assert begin_one(service.store, job_id, "{}", tag, TIMEOUT_S).is_cancelled
    service.store.end([Ending(job_id, CANCELLED, tag)])
    assert not service.redis.exists(cancel_key(job_id), KEYS.unacked)


def test_the_wish_to_cancel_ends_with_the_message(service):
    service.end(service.send(low=False))
    service.take()
    service.with_held("begin and drop", 0)
    assert not service.redis.exists(cancel_key("1"), KEYS.unacked)


def test_where_other_clients_fill_a_purged_queue_the_count_is_right_once_that_was_taken(service):
    for _ in range(4):
        service.end(service.send(low=False))
    service.purge()
    for _ in range(6):
        service.send(low=False, is_ours=False)
    for _ in range(4):
        service.take()
    assert service.num_shown() == 2
