"""A job's record says where its message is, whatever the scripts did with it."""

import json
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis

from kronos_client.contract.names import job_key
from kronos_client.redis.admission import Admission
from kronos_client.redis.connection import connect
from kronos_client.redis.job_store import Ending, JobRecord, JobStore
from kronos_client.redis.queues import DELIVERY_KEYS, list_key
from tests.admitting import admit
from tests.taking import begin_one, take_one
from worker.broker.deliveries import Deliveries

KEYS = DELIVERY_KEYS["forecast"]
LISTS = [list_key("cpu", 3), list_key("cpu", 6)]
TIMEOUT_S = 60.0
STATE = '{"status": "STARTED"}'


class Service:
    """Two jobs, sent or not, and what workers do with their messages."""

    def __init__(self, redis: Redis, url: str) -> None:
        self.redis = redis
        self.admission = Admission(redis, result_ttl_s=100, max_queue_jobs=1000)
        self.store = JobStore(redis, 100, KEYS)
        self.deliveries = Deliveries(
            connect(url, decode_responses=False), KEYS, timeout_s=TIMEOUT_S, max_bytes=10_000
        )
        self.tags: list[tuple[str, str]] = []
        """Deliveries that were ever made, and their jobs; the newest last."""

    def send(self, job_id: str, low: bool) -> None:
        if self._messages(job_id):
            return
        admit(self.admission, job_id, priority="low" if low else "normal")

    def take(self) -> None:
        delivery = take_one(self.deliveries, LISTS)
        if delivery is not None:
            self.tags.append((delivery.tag, json.loads(delivery.message)["properties"]["correlation_id"]))

    def on_a_delivery(self, what: str, which: int) -> None:
        if not self.tags:
            return
        tag, job_id = self.tags[-1 - which % len(self.tags)]
        if what.startswith(("begin", "renew")) and self._is_delayed(tag):
            return  # no worker has it
        steps: dict[str, Callable[[], object]] = {
            "begin": lambda: begin_one(self.store, job_id, STATE, tag, TIMEOUT_S),
            "renew": lambda: self.store.renew({tag: job_id}, timeout_s=TIMEOUT_S),
            "renew as other": lambda: self.store.renew({}, [tag], timeout_s=TIMEOUT_S),
            "release": lambda: self.store.release(job_id, tag, "handed back"),
            "requeue": lambda: self.deliveries.put_back(tag),
            "delay": lambda: self.deliveries.put_back(tag, 1000.0),
            "delay that is over": lambda: self.deliveries.put_back(tag, 1e-6),
            "end": lambda: self.store.end([Ending(job_id, '{"status": "FAILURE"}', tag)]),
            "end nothing": lambda: self.store.end([Ending(job_id, "", tag)]),
            "bury": lambda: self.store.end([Ending(job_id, "", tag, "an entry")]),
            "vanish": lambda: self._vanish(tag),
        }
        steps[what]()
        if what.startswith(("requeue", "delay")):  # the worker has it no longer
            self.tags.remove((tag, job_id))

    def _vanish(self, tag: str) -> None:
        """No worker renews the delivery any more."""
        if self.redis.zscore(KEYS.renewed, tag):
            self.redis.zincrby(KEYS.renewed, -TIMEOUT_S - 2000, tag)
        self.deliveries.restore_overdue()

    def check(self) -> None:
        now = self.redis.time()[0]
        for job_id in "ab":
            fields = self.redis.hgetall(job_key(job_id))
            record = JobRecord({name.encode(): text.encode() for name, text in fields.items()})
            places = self._messages(job_id)
            if "ended_at" in fields:  # a message that is left is dropped when it is taken
                continue
            if places:
                assert record.at in {place for place, _ in places}
                assert not record.is_gone(now)
            elif fields:
                assert record.at == "none"

    def _messages(self, job_id: str) -> list[tuple[str, str]]:
        """Where the job's messages are."""
        found = [("list", text) for key in LISTS for text in self.redis.lrange(key, 0, -1)]
        for tag, held in self.redis.hgetall(KEYS.unacked).items():
            text = held.partition("\n")[2]
            found.append(("delayed" if self._is_delayed(tag) else "held", text))
        return [(place, text) for place, text in found if f'"{job_id}"' in text]

    def _is_delayed(self, tag: str) -> bool:
        return any(self.redis.zscore(f"kronos:delayed:{key}", tag) is not None for key in LISTS)


SENDS = st.tuples(st.just("send"), st.sampled_from("ab"), st.booleans())
DELIVERY_STEPS = st.sampled_from(
    ["begin", "renew", "renew as other", "release", "requeue", "delay", "delay that is over"]
)
ENDS = st.sampled_from(["end", "end nothing", "bury", "vanish"])
ON_DELIVERIES = st.tuples(st.just("on_a_delivery"), DELIVERY_STEPS | ENDS, st.integers(0, 3))
STEPS = st.lists(st.one_of(SENDS, st.just(("take",)), ON_DELIVERIES), min_size=5, max_size=40)


@settings(max_examples=200)
@given(steps=STEPS)
def test_a_job_with_a_message_is_never_nowhere(redis, redis_server, steps):
    redis.flushall()
    service = Service(redis, redis_server.url)
    for name, *arguments in steps:
        getattr(service, name)(*arguments)
        service.check()
