"""Workers of release 0.1.0 and of this version run together, by their own scripts on one real Redis.

``tests/data/release_0_1_0`` has that release's scripts. Random mixtures of what workers do, and of deaths,
lose no job and give each one outcome.
"""

import json
import uuid
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from redis import Redis

from kronos_client.contract.names import cancel_key, job_key, result_key
from kronos_client.redis.connection import connect
from kronos_client.redis.job_store import Ending, JobStore
from kronos_client.redis.queues import TAKEN_KEY, delivery_keys
from kronos_client.redis.scripts import read_script
from tests.taking import begin_one, take_one
from worker.broker.deliveries import Deliveries

RELEASE: Path = Path(__file__).parents[2] / "data" / "release_0_1_0" / "lua"
KEYS = delivery_keys("t.unacked")
LISTS = ["cpu", "cpu\x06\x163"]
MESSAGES = [*KEYS, *LISTS, *(f"kronos:delayed:{key}" for key in LISTS)]
STARTED, DONE = '{"status": "STARTED"}', '{"status": "SUCCESS"}'
TTL_S = 1000
OLD_TIMEOUT_S, NEW_TIMEOUT_S = 60.0, 20.0


def message(job_id: str) -> str:
    return json.dumps({"body": "", "properties": {"correlation_id": job_id}})


class OldWorker:
    """A worker of release 0.1.0: what it does in Redis, by that release's scripts."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self.held: dict[str, str] = {}  # job ids by tag
        self._scripts = {
            path.stem: redis.register_script(read_script(path.stem, RELEASE)) for path in RELEASE.iterdir()
        }

    def _run(self, name: str, keys: list[str], *args: Any) -> Any:
        return self._scripts[name](keys=keys, args=list(args))

    def take(self) -> str | None:
        tag = uuid.uuid4().hex
        answer = self._run("take", [KEYS.unacked, KEYS.renewed, TAKEN_KEY, *LISTS], tag, 10_000, 100)
        if answer is None:
            return None
        self.held[tag] = json.loads(answer[2])["properties"]["correlation_id"]
        return tag

    def begin(self, tag: str) -> None:
        job_id = self.held[tag]
        keys = [result_key(job_id), job_key(job_id), cancel_key(job_id), KEYS.renewed]
        answer = self._run("begin", keys, STARTED, TTL_S, TTL_S, tag, OLD_TIMEOUT_S, "")
        if answer is None:
            self._acknowledge(tag)
        elif float(answer[3]) > 0:
            self.put_back(tag, float(answer[3]))

    def end(self, tag: str) -> bool:
        job_id = self.held[tag]
        keys = [result_key(job_id), job_key(job_id), cancel_key(job_id), KEYS.renewed]
        is_stored = self._run("store", keys, DONE, TTL_S, TTL_S, tag, "") == 1
        self._acknowledge(tag)
        return is_stored

    def put_back(self, tag: str, delay_s: float) -> None:
        keys = [KEYS.unacked, KEYS.renewed, TAKEN_KEY]
        self._run("requeue", keys, tag, delay_s, OLD_TIMEOUT_S)
        self._run("release", [job_key(self.held.pop(tag))], tag, "")

    def renew(self) -> None:
        keys = [key for job_id in self.held.values() for key in (job_key(job_id), result_key(job_id))]
        if self.held:
            self._run("renew_claims", [KEYS.renewed, *keys], TTL_S, *self.held)

    def restore(self) -> None:
        keys = [KEYS.unacked, KEYS.renewed, TAKEN_KEY, f"{KEYS.unacked}_watch"]
        self._run("restore", keys, OLD_TIMEOUT_S, 1e9, 0, 100)

    def _acknowledge(self, tag: str) -> None:
        self.redis.zrem(KEYS.renewed, tag)
        self.redis.hdel(KEYS.unacked, tag)
        self.held.pop(tag)


class NewWorker:
    """A worker of this version: what it does in Redis, by its own classes."""

    def __init__(self, redis: Redis, url: str) -> None:
        self.redis = redis
        self.held: dict[str, str] = {}
        self._deliveries = Deliveries(
            connect(url, decode_responses=False), KEYS, timeout_s=NEW_TIMEOUT_S, max_bytes=10_000
        )
        self._store = JobStore(redis, TTL_S, KEYS)

    def take(self) -> str | None:
        delivery = take_one(self._deliveries, LISTS)
        if delivery is None:
            return None
        self.held[delivery.tag] = json.loads(delivery.message)["properties"]["correlation_id"]
        return delivery.tag

    def begin(self, tag: str) -> None:
        receipt = begin_one(self._store, self.held[tag], STARTED, tag, NEW_TIMEOUT_S)
        if receipt == "ended":
            self._end(tag, "")
        elif receipt != "conflict" and receipt.held_s > 0:
            self.put_back(tag, receipt.held_s)

    def end(self, tag: str) -> bool:
        return self._end(tag, DONE)

    def _end(self, tag: str, outcome: str) -> bool:
        job_id = self.held.pop(tag)
        was_ended = bool(self.redis.hexists(job_key(job_id), "ended_at"))
        return self._store.end([Ending(job_id, outcome, tag)]) == ["stored"] and not was_ended

    def put_back(self, tag: str, delay_s: float) -> None:
        self._store.release(self.held.pop(tag), tag)
        self._deliveries.put_back(tag, delay_s)

    def renew(self) -> None:
        self._store.renew(self.held, timeout_s=NEW_TIMEOUT_S)

    def restore(self) -> None:
        self._deliveries.restore_overdue()


class Pool:
    """A worker of each version, and jobs that were admitted."""

    def __init__(self, redis: Redis, url: str) -> None:
        redis.flushdb()
        self.redis = redis
        self.workers: dict[str, Any] = {"old": OldWorker(redis), "new": NewWorker(redis, url)}
        self.stored: list[str] = []
        self.job_ids = [str(number) for number in range(4)]
        for number, job_id in enumerate(self.job_ids):
            redis.hset(job_key(job_id), "fingerprint", "x")
            redis.lpush(LISTS[number % 2], message(job_id))

    def act(self, version: str, action: str, which: int, delay_s: float) -> None:
        worker = self.workers[version]
        tag = list(worker.held)[which % len(worker.held)] if worker.held else None
        if action in ("take", "renew", "restore"):
            getattr(worker, action)()
        elif action == "die":
            worker.held.clear()
        elif action == "wait":
            self.wait(delay_s)
        elif tag is not None and action == "put_back":
            worker.put_back(tag, delay_s)
        elif tag is not None and action == "begin":
            worker.begin(tag)
        elif tag is not None and self.redis.hget(job_key(worker.held[tag]), "received_at"):
            job_id = worker.held[tag]
            if worker.end(tag):
                self.stored.append(job_id)

    def wait(self, seconds: float) -> None:
        """Make what is in Redis so much older."""
        for key in (KEYS.renewed, *(f"kronos:delayed:{key}" for key in LISTS)):
            for tag in self.redis.zrange(key, 0, -1):
                self.redis.zincrby(key, -seconds, tag)
        self.redis.delete(f"{KEYS.unacked}_watch")

    def whereabouts(self) -> set[str]:
        """The jobs that have an outcome, or whose message a worker will find."""
        listed = [text for key in LISTS for text in self.redis.lrange(key, 0, -1)]
        index = self.redis.zrange(KEYS.renewed, 0, -1)
        taken = (
            [text.partition("\n")[2] for text in self.redis.hmget(KEYS.unacked, index) if text]
            if index
            else []
        )
        found = {json.loads(text)["properties"]["correlation_id"] for text in (*listed, *taken)}
        return found | {job_id for job_id in self.job_ids if self.redis.hexists(job_key(job_id), "ended_at")}

    def finish(self, versions: str) -> None:
        """All workers die; others of these versions end what is left."""
        for turn in range(60):
            self.wait(1000)
            worker = self.workers[versions.split()[turn % len(versions.split())]]
            worker.held.clear()
            worker.restore()
            while tag := worker.take():
                worker.begin(tag)
                if tag in worker.held:
                    job_id = worker.held[tag]
                    if worker.end(tag):
                        self.stored.append(job_id)
            if not self.redis.exists(*MESSAGES):
                return


ACTIONS = st.tuples(
    st.sampled_from(["old", "new"]),
    st.sampled_from(["take", "take", "begin", "begin", "end", "renew", "restore", "put_back", "die", "wait"]),
    st.integers(0, 3),
    st.sampled_from([0.0, 5.0, 30.0, 100.0]),
)


def test_jobs_of_both_versions_workers_end_once_and_none_is_lost(redis, redis_server):
    @hypothesis_settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(ACTIONS, max_size=30), st.sampled_from(["old", "new", "old new"]))
    def check(actions, last) -> None:
        pool = Pool(redis, redis_server.url)
        for action in actions:
            pool.act(*action)
            assert pool.whereabouts() == set(pool.job_ids)
        pool.finish(last)
        assert sorted(pool.stored) == pool.job_ids
        pool.workers["new"].restore()
        pool.workers["new"].take()
        assert not redis.exists(*MESSAGES)

    check()
