"""Batches of jobs of a worker that ends, or whose Redis fails, between any two steps. On a real Redis."""

import gc
import json
import math
import time
import weakref
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from celery.exceptions import Ignore
from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis
from redis.backoff import ConstantBackoff
from redis.exceptions import ConnectionError, RedisError

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.job_limits import Limits
from kronos_client.contract.jobs import read_job
from kronos_client.contract.names import FORECAST_TASK, job_key, result_key
from kronos_client.contract.schemas import example
from kronos_client.core.stored import NOT_BEGUN, encode_failure
from kronos_client.redis.connection import connect
from kronos_client.redis.job_store import Ending, JobStore
from kronos_client.redis.queues import DELIVERY_KEYS, TAKEN_KEY
from tests.published import published_states
from worker.broker import outcomes, transport
from worker.broker.claims import Claims
from worker.broker.deliveries import Asked, Deliveries
from worker.tasks import forecast
from worker.tasks.attempt import Requeued
from worker.tasks.forecast import ForecastAttempt, ForecastJobs

KEYS = DELIVERY_KEYS["forecast"]
QUEUE = "cpu"
TIMEOUT_S = 60.0
MAX_AT_ONCE = 8
NUM_JOBS = {1: 3, 2: 5, MAX_AT_ONCE: 13}
"""By the size of a batch: more than one of each."""
MAX_ROUNDS = 1000


class Killed(BaseException):
    """The worker's process has ended."""


class Fault:
    """Raised between two steps, once, or for good if it ends the process."""

    def __init__(self, error: type[BaseException] = Killed, at_step: float = math.inf) -> None:
        self._error = error
        self._num_left = at_step

    def step(self) -> None:
        """The end of a step."""
        if self._num_left == 0 and self._error is not Killed:
            self._num_left = math.inf
            raise self._error
        if self._num_left <= 0:
            raise self._error
        self._num_left -= 1


def connect_with(fault: Fault, url: str, **options: Any) -> Redis:
    """A connection with steps before and after each command."""
    redis: Any = connect(url, **options)
    execute = redis.execute_command

    def execute_command(*args: Any, **options: Any) -> Any:
        fault.step()
        answer = execute(*args, **options)
        fault.step()
        return answer

    redis.execute_command = execute_command
    return redis


class ScriptedComputation:
    """A fake ``Computation``, which ends when the test ends it. As the real one, it keeps ``on_change``."""

    is_done = False
    is_failed = False

    def __init__(self, computations: Any, job_id: str, *given: Any) -> None:
        *_, self._on_change, _ = given
        self._job_id = job_id
        computations.append(self)

    def end(self) -> None:
        self.is_done = True
        self._on_change()

    def advance(self) -> bool:
        return self.is_done

    def result(self) -> dict[str, Any]:
        if self.is_failed:
            raise JobError(ErrorCode.CANCELLED, "as asked")
        return {"series": [self._job_id]}

    def new_progress(self) -> None:
        """None."""

    def close(self) -> None:
        """Nothing to leave."""


class Worker:
    """A worker without Celery, which holds at most so many jobs."""

    def __init__(self, url: str, batch_size: int, fault: Fault) -> None:
        self.fault, self.batch_size = fault, batch_size
        connection = connect_with(fault, url, decode_responses=False)
        self.deliveries = Deliveries(connection, KEYS, timeout_s=TIMEOUT_S, max_bytes=10_000)
        store = JobStore(connect_with(fault, url), 50, KEYS)
        self.outcomes = outcomes.Outcomes(store)
        self.computations: list[ScriptedComputation] = []
        process: Any = SimpleNamespace(
            node="test",
            limits=Limits(),
            queue=QUEUE,
            job_store=store,
            claims=Claims(store, TIMEOUT_S),
            outcomes=self.outcomes,
            hand_back_at=math.inf,
            state="ready",
            metrics=SimpleNamespace(observe_job_wait=lambda *_: None),
            server=self.computations,
        )
        self.jobs = ForecastJobs(process)
        self.ends: Counter[str] = Counter()  # by the delivery's tag
        self.errors: list[Any] = []

    def drive(self, num_computed: int) -> None:
        """Take, begin, compute and end jobs until none is left; so many are computed at once."""
        for _ in range(MAX_ROUNDS):
            try:
                self.take()
                self.run()
                if not self.jobs:
                    return
                for computation in self.computations[:num_computed]:
                    computation.end()
                del self.computations[:num_computed]
                self.fault.step()
                self.run()
            except RedisError:
                continue  # as Celery, which connects again
        raise AssertionError("the jobs do not end")

    def take(self) -> None:
        while room := self.batch_size - len(self.jobs):
            asked = {QUEUE: Asked(max_messages=min(16, room))}
            deliveries = self.deliveries.take_all(asked, max_bytes=10**6)
            for delivery in deliveries:
                self.add(delivery.tag, json.loads(delivery.message)["properties"]["correlation_id"])
            if not deliveries:
                return

    def add(self, tag: str, job_id: str) -> None:
        def on_success(result: tuple[bool, Any, float]) -> None:
            self.ends[tag] += 1
            self.errors.append(getattr(result[1], "exception", None))
            if isinstance(error := getattr(result[1], "exception", None), Requeued):
                self.deliveries.put_back(tag, error.delay_s)

        delivery = {"properties": {"delivery_tag": tag}, "delivery_info": {"routing_key": QUEUE}}
        context = SimpleNamespace(id=job_id, **delivery)
        request = SimpleNamespace(name="t", on_accepted=lambda *_: None, on_success=on_success)
        self.jobs.add(ForecastAttempt(self.jobs, context, (), {"job": {}}, request=request))

    def run(self) -> None:
        self.fault.step()
        self.jobs.run()
        self.fault.step()
        self.outcomes.flush()
        self.fault.step()


@pytest.fixture
def woken(monkeypatch):
    """Has an entry for each time that the worker had its loop run soon."""
    woken: list[bool] = []
    consumer = SimpleNamespace(wake=lambda: woken.append(True))
    monkeypatch.setattr(transport, "message_consumer", lambda: consumer)
    return woken


@pytest.fixture
def patched(monkeypatch, woken):
    monkeypatch.setattr(forecast, "Computation", ScriptedComputation)
    job = read_job(example("forecast-job"), Limits())
    monkeypatch.setattr(forecast, "read_job", lambda *_: job)  # a few ms for each
    monkeypatch.setattr(forecast, "RETRY_DELAY_S", 0.0)
    monkeypatch.setattr(outcomes, "PAUSES", ConstantBackoff(0))
    for module in (forecast, outcomes):
        monkeypatch.setattr(module, "MAX_AT_ONCE", MAX_AT_ONCE)


def send(redis: Redis, num_jobs: int) -> list[str]:
    job_ids = [f"job-{number}" for number in range(num_jobs)]
    for job_id in job_ids:
        redis.hset(job_key(job_id), "fingerprint", "x")  # as admitted
        redis.lpush(QUEUE, json.dumps({"properties": {"correlation_id": job_id}}))
    return job_ids


def restore(redis: Redis, deliveries: Deliveries) -> None:
    """As if the deliveries had not been renewed for long."""
    for tag in redis.zrange(KEYS.renewed, 0, -1):
        redis.zincrby(KEYS.renewed, -TIMEOUT_S - 1, tag)
    while deliveries.restore_overdue():
        pass


def holders(redis: Redis, job_ids: list[str]) -> set[str]:
    return {job_id for job_id in job_ids if redis.hexists(job_key(job_id), "holder")}


@pytest.mark.parametrize("error", [Killed, ConnectionError])
@pytest.mark.parametrize("batch_size", list(NUM_JOBS))
@settings(max_examples=60)
@given(at_step=st.integers(0, 40) | st.integers(41, 160), num_computed=st.sampled_from([1, 3, MAX_AT_ONCE]))
def test_each_job_has_one_outcome_whatever_fails_between_two_steps(
    redis, redis_server, patched, batch_size, error, at_step, num_computed
):
    redis.flushall()
    job_ids = send(redis, NUM_JOBS[batch_size])
    with published_states(redis) as states:
        first = Worker(redis_server.url, batch_size, Fault(error, at_step))
        try:
            first.drive(num_computed)
        except Killed:
            assert error is Killed
        lost = holders(redis, job_ids)
        second = Worker(redis_server.url, batch_size, Fault())
        restore(redis, second.deliveries)
        second.drive(MAX_AT_ONCE)
    ended = Counter(state["task_id"] for state in states if state["status"] == "SUCCESS")
    assert ended == dict.fromkeys(job_ids, 1)
    for job_id in job_ids:
        assert json.loads(redis.get(result_key(job_id)))["result"] == {"series": [job_id]}
        record = redis.hgetall(job_key(job_id))
        assert "holder" not in record
        assert record["at"] == "none"
        assert record.get("lost", "0") == ("1" if job_id in lost else "0")
    assert not redis.exists(*KEYS, QUEUE, f"kronos:delayed:{QUEUE}")
    assert redis.hget(TAKEN_KEY, QUEUE) == str(len(job_ids))
    assert error is Killed or not lost
    for worker in (first, second) if error is not Killed else (second,):
        assert (len(worker.jobs), worker.outcomes.num_kept_bytes) == (0, 0)
        assert set(worker.ends.values()) <= {1}


def test_time_without_jobs_is_not_busy(redis, redis_server, patched):
    worker = Worker(redis_server.url, 2, Fault())
    send(redis, 3)
    begun_at = time.monotonic()
    worker.drive(1)
    worker.run()
    busy_s = worker.jobs.busy_s
    assert 0 < busy_s <= time.monotonic() - begun_at
    time.sleep(0.01)
    worker.run()
    assert worker.jobs.busy_s == busy_s


def test_a_job_that_a_client_ended_while_it_waited_counts_once(redis, redis_server, patched):
    worker, counted = Worker(redis_server.url, 2, Fault()), []
    worker.outcomes.on_end = lambda task, job_id, outcome: counted.append((task, job_id, outcome))
    (job_id,) = send(redis, 1) and send(redis, 1)  # submitted twice
    JobStore(redis, 50).end([Ending(job_id, encode_failure(job_id, NOT_BEGUN))])
    stored = redis.get(result_key(job_id))
    worker.drive(1)
    ((task, _, outcome),) = counted
    assert (task, outcome.args) == (FORECAST_TASK, NOT_BEGUN.args)
    dropped, failed = sorted(worker.errors, key=lambda error: isinstance(error, JobError))
    assert isinstance(dropped, Ignore)
    assert failed.args == NOT_BEGUN.args  # Celery's request sends it to Flower
    assert redis.get(result_key(job_id)) == stored
    assert not redis.exists(QUEUE, KEYS.unacked)


def test_a_job_that_ended_is_freed_at_once_without_garbage_collection(redis, redis_server, patched):
    """It holds tensors, and Python's collector does not know how large they are."""
    worker = Worker(redis_server.url, MAX_AT_ONCE, Fault())
    send(redis, 2)
    worker.take()
    worker.run()
    computations = [weakref.ref(one) for one in worker.computations]
    worker.computations[1].is_failed = True
    gc.collect()
    gc.disable()
    try:
        worker.drive(MAX_AT_ONCE)
        assert [one() for one in computations] == [None, None]
    finally:
        gc.enable()


def test_the_loop_runs_again_while_jobs_are_to_begin_and_once_there_is_room(
    redis, redis_server, patched, woken
):
    worker = Worker(redis_server.url, 13, Fault())
    send(redis, 13)
    worker.take()
    for num_begun, runs_again in ((MAX_AT_ONCE, True), (13, False)):
        woken.clear()
        worker.jobs.run()
        assert (len(worker.computations), bool(woken)) == (num_begun, runs_again)
    worker.computations[0].end()
    worker.jobs.run()
    woken.clear()
    worker.outcomes.flush()
    assert woken


def test_the_jobs_of_a_round_go_to_the_engine_thread_in_one_command(
    redis, redis_server, patched, monkeypatch
):
    class Submitted(ScriptedComputation):
        def __init__(self, server: Any, job_id: str, *given: Any) -> None:
            given[-1]([job_id])

    monkeypatch.setattr(forecast, "Computation", Submitted)
    worker = Worker(redis_server.url, MAX_AT_ONCE, Fault())
    batches: list[Any] = []
    worker.jobs.process.server = SimpleNamespace(engine_thread=SimpleNamespace(submit=batches.append))
    job_ids = send(redis, 5)
    worker.take()
    for _ in range(3):
        worker.run()
    assert [sorted(batch) for batch in batches] == [job_ids]
