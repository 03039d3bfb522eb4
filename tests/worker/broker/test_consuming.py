"""Taking messages: when they are taken, handed over, buried, or left for later."""

import base64
import json
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import ConnectionError, ResponseError

from kronos_client.contract.errors import ErrorCode
from kronos_client.contract.names import DEAD_KEY
from kronos_client.redis.connection import connect
from kronos_client.redis.job_store import JobStore
from kronos_client.redis.queues import PRIORITY_STEPS, TAKEN_KEY, delivery_keys, large_key, list_key
from tests.taking import take_one
from tests.worker.broker.test_messages import message
from worker.broker import consuming
from worker.broker.consuming import MessageConsumer
from worker.broker.deliveries import Deliveries
from worker.broker.outcomes import Outcomes
from worker.broker.service_order import ALL_ROOM, NUM_CLASSES, Large, Room, Rooms, ServiceOrder

KEYS = delivery_keys("t.unacked")
UNACKED, INDEX = KEYS.unacked, KEYS.renewed
ANY, SMALL = Room(True, Large.ANY), Room(True, Large.NONE)


class NotedOutcomes(Outcomes):
    """Ends jobs, and notes the answers."""

    def __init__(self, store: JobStore) -> None:
        super().__init__(store)
        self.answers: list = []
        self.is_elsewhere = False

    def end(self, ending, *, task="", outcome=None, waits=False):
        if outcome is not None:
            self.answers.append((ending.job_id, outcome.code, outcome.message))
        return "held" if self.is_elsewhere else super().end(ending, task=task, outcome=outcome, waits=waits)


class Bench:
    """A consumer on a real Redis, and what it did."""

    def __init__(self, redis, url: str) -> None:
        self.redis = redis
        self.handed_over: list = []
        self.trouble: Exception | None = None
        self.room = 1000
        self.classes = 3
        self.has_thread = True
        connection = connect(url, decode_responses=False)
        self.deliveries = Deliveries(connection, KEYS, timeout_s=60, max_bytes=5000)
        self.outcomes = NotedOutcomes(JobStore(connection, 60, KEYS))
        self.consumer = MessageConsumer(self.deliveries, 5000, self.outcomes)

    @property
    def answers(self) -> list:
        return self.outcomes.answers

    def send(self, value=None, queue: str = "cpu") -> None:
        value = message() if value is None else value
        self.redis.lpush(queue, value if isinstance(value, bytes) else json.dumps(value))

    def take(self, *queues: str) -> list[str]:
        """Ids of the jobs that were handed over."""
        self.handed_over.clear()
        self.consumer.notify()
        self.consumer.take(queues or ("cpu",), self.rooms, self.hand_over)
        return [message.payload["headers"]["id"] for _, _, message in self.handed_over]

    def rooms(self) -> Rooms:
        num_open = self.classes if self.room > len(self.handed_over) else 0
        of_class = tuple(ANY if rank < num_open else Room() for rank in range(NUM_CLASSES))
        return Rooms(of_class, has_thread=self.has_thread)

    def hand_over(self, delivery, queue, step, message) -> None:
        self.handed_over.append((queue, step, message))
        if self.trouble is not None:
            raise self.trouble

    def dead(self) -> list[dict]:
        return [json.loads(entry) for entry in self.redis.lrange(DEAD_KEY, 0, -1)]

    @property
    def num_unacked(self) -> int:
        assert self.redis.zcard(INDEX) == self.redis.hlen(UNACKED)
        return self.redis.hlen(UNACKED)


@pytest.fixture
def bench(redis, redis_server) -> Bench:
    return Bench(redis, redis_server.url)


def named(job_id: str, **headers) -> dict:
    return message(headers={"id": job_id} | headers)


def test_messages_are_taken_by_priority_over_all_queues_while_there_is_room(bench):
    for job_id, queue in [("a", "gpu\x06\x163"), ("b", "cpu\x06\x166"), ("c", "cpu"), ("d", "gpu")]:
        bench.send(named(job_id), queue)
    assert bench.take("cpu", "gpu") == ["c", "d", "a", "b"]
    assert [(queue, step) for queue, step, _ in bench.handed_over] == [
        ("cpu", 0), ("gpu", 0), ("gpu", 3), ("cpu", 6)
    ]  # fmt: skip
    assert bench.num_unacked == 4


def test_without_room_messages_stay_on_their_list(bench):
    for job_id in "abc":
        bench.send(named(job_id))
    bench.room = 2
    assert bench.take() == ["a", "b"]
    assert bench.redis.llen("cpu") == 1


def test_without_a_notification_it_checks_only_after_an_interval(bench, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(consuming, "time", SimpleNamespace(monotonic=lambda: now[0]))
    assert bench.take() == []
    bench.send()
    bench.consumer.take(("cpu",), lambda: ALL_ROOM, bench.hand_over)
    assert bench.handed_over == []
    now[0] += consuming.CHECK_INTERVAL_S
    bench.consumer.take(("cpu",), lambda: ALL_ROOM, bench.hand_over)
    assert len(bench.handed_over) == 1


MESSAGES = st.lists(
    st.tuples(
        st.sampled_from(["cpu", "gpu"]),
        st.sampled_from(PRIORITY_STEPS),
        st.sampled_from(["waits", "large, new", "large, old", "due", "delayed"]),
    ),
    max_size=12,
)


@given(
    messages=MESSAGES,
    room=st.integers(1, 12),
    num_classes=st.integers(1, NUM_CLASSES),
    large=st.sampled_from(Large),
    is_full=st.booleans(),
)
def test_after_it_stopped_a_look_finds_nothing_unless_it_is_notified(
    bench, messages, room, num_classes, large, is_full
):
    """So it need not look again before Redis notifies of another message, or a second has passed."""
    bench.redis.flushall()
    bench.handed_over.clear()
    now = time.time()
    for number, (queue, step, kind) in enumerate(messages):
        key, text = list_key(queue, step), json.dumps(named(f"job-{number}"))
        if kind == "waits":
            bench.redis.lpush(key, text)
        elif kind.startswith("large"):
            moment = now + 10 if kind == "large, new" else now - 1000
            bench.redis.lpush(large_key(key), f"{moment:.6f}\n{text}")
        else:
            bench.redis.hset(UNACKED, f"tag-{number}", f"{key}\n{text}")
            bench.redis.zadd(
                f"kronos:delayed:{key}", {f"tag-{number}": now + (9 if kind == "delayed" else -9)}
            )

    def rooms() -> Rooms:
        num_open = num_classes if len(bench.handed_over) < room else 0
        return Rooms((Room(True, large),) * num_open + (Room(),) * (NUM_CLASSES - num_open))

    consumer = MessageConsumer(bench.deliveries, 5000, bench.outcomes)
    try:
        bench.redis.config_set("maxmemory", int(is_full))
        consumer.take(("cpu", "gpu"), rooms, bench.hand_over, lambda: len(bench.handed_over))
        asked = ServiceOrder().lists(("cpu", "gpu"), rooms())
        found = take_one(
            bench.deliveries, list(asked), list(asked.values()), holds_others=bool(bench.handed_over)
        )
    finally:
        bench.redis.config_set("maxmemory", 0)
    assert found is None or consumer.notified.is_set()


def test_room_for_another_class_is_used_at_once(bench):
    bench.send(named("low"), "cpu\x06\x166")
    bench.classes = 1
    assert bench.take() == []
    bench.classes = 3
    bench.consumer.take(("cpu",), bench.rooms, bench.hand_over)  # without a notification
    assert len(bench.handed_over) == 1


def test_between_many_messages_the_event_loop_gets_its_turn(bench, monkeypatch):
    monkeypatch.setattr(consuming, "MAX_TAKEN_AT_ONCE", 2)
    woken = []
    for job_id in "abc":
        bench.send(named(job_id))
    bench.consumer.wake_by(lambda: woken.append(True))
    assert bench.take() == ["a", "b"]
    assert len(woken) == 2  # the notification itself, and the call to go on
    bench.consumer.take(("cpu",), lambda: ALL_ROOM, bench.hand_over)
    assert len(bench.handed_over) == 3


def test_an_unreadable_message_is_answered_buried_and_counted(bench):
    buried = []
    bench.consumer.on_dead = lambda: buried.append(True)
    bench.send(b"\xff")
    bench.send(named("bad", task="other.task"))
    bench.send(b"[" * 6000)
    bench.send(named("good"))
    assert bench.take() == ["good"]
    ((job_id, code, text),) = bench.answers
    assert (job_id, code) == ("bad", ErrorCode.BAD_MESSAGE)
    assert "other.task" in text
    assert [entry["id"] for entry in bench.dead()] == [None, "bad", None]
    assert len(buried) == 3
    assert bench.num_unacked == 1


def test_a_message_that_celery_cannot_handle_is_answered_and_buried(bench):
    bench.send()
    bench.trouble = TypeError("of Celery's")
    bench.take()
    assert [(job_id, code) for job_id, code, _ in bench.answers] == [("job-1", ErrorCode.BAD_MESSAGE)]
    assert bench.dead()[0]["reason"] == "Celery cannot read it"
    assert bench.num_unacked == 0


@pytest.mark.parametrize("refusal", ["OOM command not allowed", "READONLY You can't write"])
def test_a_message_comes_again_after_a_redis_error(bench, refusal):
    bench.send()
    bench.trouble = ResponseError(refusal)
    bench.take()
    assert bench.answers == bench.dead() == []
    assert bench.num_unacked == 1


def test_a_lost_connection_is_raised_to_the_consumer(bench):
    bench.send()
    bench.trouble = ConnectionError()
    with pytest.raises(ConnectionError):
        bench.take()
    assert bench.num_unacked == 1


def test_a_key_of_the_wrong_type_does_not_end_the_worker(bench):
    bench.redis.set("cpu", "mine")
    assert bench.take() == []


def test_a_message_with_an_eta_waits_in_redis(bench):
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    bench.send(named("later", eta=tomorrow.isoformat()))
    bench.send(named("now", eta="2001-01-01T00:00:00+00:00"))
    bench.send(named("never", eta="2999-01-01T00:00:00+00:00"))
    assert bench.take() == ["now"]
    assert bench.num_unacked == 2
    latest = max(score for _, score in bench.redis.zrange(INDEX, 0, -1, withscores=True))
    assert latest == pytest.approx(tomorrow.timestamp(), abs=5)
    assert bench.redis.zcard("kronos:delayed:cpu") == 1
    assert [(job_id, code) for job_id, code, _ in bench.answers] == [("never", ErrorCode.BAD_MESSAGE)]


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_a_message_that_expired_ends_its_job_unless_a_worker_has_it(bench, is_elsewhere):
    bench.outcomes.is_elsewhere = is_elsewhere
    bench.send(named("late", expires="2001-01-01T00:00:00+00:00"))
    bench.send(named("in time", expires="2999-01-01T00:00:00+00:00"))
    assert bench.take() == ["in time"]
    assert [(job_id, code) for job_id, code, _ in bench.answers] == [("late", ErrorCode.DEADLINE)]
    assert bench.num_unacked == 1 + is_elsewhere
    assert bench.dead() == []


def test_a_message_that_is_requeued_with_a_delay_comes_later(bench):
    bench.send(named("a"))
    bench.send(named("b"))
    bench.take()
    first, second = bench.redis.zrange(INDEX, 0, -1)
    bench.consumer.delay(first, 30)
    bench.consumer.requeue(first)
    bench.consumer.requeue(second)
    assert bench.redis.hkeys(UNACKED) == [first]
    assert bench.redis.llen("cpu") == 1


def test_a_message_that_celery_rejects_is_answered_and_buried(bench):
    bench.send()
    bench.take()
    bench.consumer.reject(bench.redis.zrange(INDEX, 0, -1)[0])
    assert [code for _, code, _ in bench.answers] == [ErrorCode.BAD_MESSAGE]
    assert bench.dead()[0]["id"] == "job-1"
    assert bench.num_unacked == 0


def sized(job_id: str, num_paths: int) -> dict:
    job = {"series": [{}], "sampling": {"sample_count": num_paths}, "pred_len": 24}
    body = base64.b64encode(json.dumps([[], {"job": job}, {}]).encode()).decode()
    return named(job_id) | {"body": body}


def test_a_large_job_without_room_moves_aside_once_and_is_taken_by_a_worker_with_room(bench):
    for number in range(3):
        bench.send(sized(f"large-{number}", 9))
    bench.send(sized("small", 8))
    bench.rooms = lambda: Rooms((SMALL, SMALL, SMALL), max_small_paths=8)
    assert bench.take() == ["small"]
    assert bench.redis.hget(TAKEN_KEY, "cpu") == "4"
    assert bench.redis.llen("kronos:large:cpu") == 3
    assert bench.num_unacked == 1
    assert bench.take() == []
    bench.send(sized("new", 9))
    bench.rooms = lambda: ALL_ROOM
    assert bench.take() == ["large-0", "new", "large-1", "large-2"]  # by turns
    assert {(queue, step) for queue, step, _ in bench.handed_over} == {("cpu", 0)}


def test_classes_have_their_shares_in_a_full_redis(bench):
    for number in range(20):
        bench.send(sized(f"high-{number}", 1))
    bench.send(sized("low", 1), "cpu\x06\x166")
    taken = []
    try:
        bench.redis.config_set("maxmemory", 1)
        while "low" not in taken:
            bench.handed_over.clear()
            bench.consumer.notify()
            bench.consumer.take(("cpu",), bench.rooms, bench.hand_over, lambda: len(bench.handed_over))
            assert len(bench.handed_over) == 1
            taken.append(bench.handed_over[0][2].payload["headers"]["id"])
    finally:
        bench.redis.config_set("maxmemory", 0)
    assert taken.index("low") == 8


def test_due_messages_of_a_lower_class_have_their_turn_too(bench):
    low = "cpu\x06\x166"
    bench.send(sized("low", 1), low)
    bench.take()
    (tag,) = bench.redis.hkeys(UNACKED)
    bench.deliveries.put_back(tag, 1000)
    bench.redis.zadd(f"kronos:delayed:{low}", {tag: 1})
    for number in range(20):
        bench.send(sized(f"high-{number}", 1))
    bench.room = 10
    assert "low" in bench.take()


def test_a_job_with_callbacks_waits_for_a_thread_and_others_do_not(bench):
    signature = {"task": "theirs", "args": [], "kwargs": {}, "options": {}}
    linked = message(body=[[], {"job": {}}, {"callbacks": [signature]}], headers={"id": "linked"})
    bench.has_thread = False
    for value in (linked, named("plain")):
        bench.send(value)
    assert bench.take() == ["plain"]
    assert bench.num_unacked == 2
    bench.has_thread = True
    for tag in bench.redis.zrange(key := "kronos:delayed:cpu", 0, -1):
        bench.redis.zadd(key, {tag: 0})
    assert bench.take() == ["linked"]


@pytest.mark.parametrize("is_named", [True, False])
def test_a_change_that_is_named_right_after_an_empty_take_has_the_loop_run_again(
    bench, monkeypatch, is_named
):
    woken: list[bool] = []
    bench.consumer.wake_by(lambda: woken.append(True))

    def take_nothing(*_, **__) -> list:
        if is_named:
            bench.consumer.notified.set()
        return []

    monkeypatch.setattr(bench.deliveries, "take_all", take_nothing)
    bench.deliveries.is_full = False
    bench.consumer.notified.set()
    bench.consumer.take(("cpu",), bench.rooms, bench.hand_over)
    assert woken == [True] * is_named
