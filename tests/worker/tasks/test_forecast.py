"""How one delivery of a job ends, on a scripted computation and a real Redis."""

import json
import math
import time
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from celery.exceptions import Ignore
from redis.exceptions import ConnectionError as RedisConnectionError

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.job_limits import Limits
from kronos_client.contract.names import FORECAST_TASK, job_key
from kronos_client.contract.schemas import example
from kronos_client.redis.job_store import JobStore
from kronos_client.redis.queues import DELIVERY_KEYS
from kronos_model.processes.json_child import ChildEnded
from worker.broker import transport
from worker.broker.claims import Claims
from worker.broker.outcomes import Outcomes
from worker.inference import isolation
from worker.inference.engine_thread import EngineDied
from worker.inference.isolation import ChildUnavailable
from worker.monitoring.metrics import WorkerMetrics
from worker.process import RetryLater, current
from worker.tasks import attempt, forecast
from worker.tasks.attempt import Requeued

KEYS = DELIVERY_KEYS["forecast"]
TIMEOUT_S = 30.0
RESULT = {"series": []}


class ScriptedIsolation:
    """A fake ``Isolation``: scripted ends first, then a result."""

    def __init__(self) -> None:
        self.ends: list[Exception] = []
        self.num_computed = 0

    def compute(self, job_id: str, *_: object) -> dict[str, Any]:
        self.num_computed += 1
        if self.ends:
            raise self.ends.pop(0)
        return RESULT


@pytest.fixture
def process(redis, monkeypatch):
    """The part of a worker process that a delivery uses."""
    records = JobStore(redis, 50, KEYS, lambda tag: process.claims.take_away(tag))
    process = SimpleNamespace(
        node="test",
        limits=Limits(),
        queue="cpu",
        job_store=records,
        claims=Claims(records, TIMEOUT_S),
        outcomes=Outcomes(records),
        capacity=SimpleNamespace(admitted=lambda job_id: None),
        isolation=ScriptedIsolation(),
        server=None,
        hand_back_at=math.inf,
        state="ready",
        metrics=WorkerMetrics(dict, lambda: 0),
    )
    monkeypatch.setattr(current, "process", process)
    return process


class ScriptedComputation:
    """A fake ``Computation``: as the worker's own models, it ends with ``end``, else with a result."""

    end: Exception | None = None
    jobs: list[Any]

    def __init__(self, process: object, job_id: str, job: Any, *_: object) -> None:
        self.jobs.append(job)

    def advance(self) -> bool:
        if self.end is not None:
            raise self.end
        return True

    def result(self) -> dict[str, Any]:
        return RESULT

    def close(self) -> None:
        pass


@pytest.fixture
def computation(monkeypatch):
    monkeypatch.setattr(ScriptedComputation, "jobs", [], raising=False)
    monkeypatch.setattr(ScriptedComputation, "end", None)
    monkeypatch.setattr(forecast, "Computation", ScriptedComputation)
    return ScriptedComputation


@pytest.fixture
def deliver(process, computation, monkeypatch):
    """One delivery with its own tag, for which a thread of Celery's pool waits."""
    consumer = SimpleNamespace(wake=lambda: None)
    monkeypatch.setattr(transport, "message_consumer", lambda: consumer)
    monkeypatch.setattr(forecast, "CHECK_INTERVAL_S", 0.01)
    jobs = forecast.ForecastJobs(process)

    def deliver(token: str, payload: Any = None, **headers: Any) -> dict[str, Any]:
        request = SimpleNamespace(
            id="job", properties={"delivery_tag": token}, delivery_info={"routing_key": "cpu"}, **headers
        )
        given, waiter = {"job": example("forecast-job") | (payload or {})}, Future[dict[str, Any]]()
        jobs.add(forecast.ForecastAttempt(jobs, request, (), given, waiter=waiter))
        while not waiter.done():
            jobs.run()
        assert len(jobs) == 0
        return waiter.result()

    return deliver


@pytest.mark.parametrize(
    ("deadline_s", "time_limit_s", "expected_s"),
    [(None, 5, 35), (100, 5, 35), (20, 5, 20), (None, None, None)],
)
def test_a_time_limit_is_a_deadline_from_the_start_on(
    deliver, computation, redis, deadline_s, time_limit_s, expected_s
):
    times = {"submitted_at": redis.time()[0] - 30.0, "deadline_s": deadline_s}
    deliver("x", times, time_limit_s=time_limit_s)
    actual_s = computation.jobs[0].deadline_s
    assert actual_s is None if expected_s is None else expected_s <= actual_s < expected_s + 5


def lost(redis) -> int:
    return int(redis.hget(job_key("job"), "lost") or 0)


def make_suspect(redis) -> None:
    redis.hset(job_key("job"), "lost", 2)


def is_claimed(redis) -> bool:
    return bool(redis.hexists(job_key("job"), "holder"))


def test_it_runs_under_its_claim_until_the_outcome_is_stored(deliver, process, redis):
    assert deliver("x") == RESULT
    assert redis.hget(job_key("job"), "holder") == "x"
    assert process.claims.has("job")
    # As Celery reports that it has stored the outcome, or could not.
    request = SimpleNamespace(properties={"delivery_tag": "x"})
    attempt.end_claim("job", SimpleNamespace(name=FORECAST_TASK, request=request))
    assert not process.claims.has("job")


def test_a_second_delivery_goes_back_until_the_claim_would_end(deliver, redis):
    deliver("x")
    with pytest.raises(Requeued) as back:
        deliver("y")
    assert back.value.requeue
    assert TIMEOUT_S - 5 < back.value.delay_s <= TIMEOUT_S + 1
    assert redis.hget(job_key("job"), "holder") == "x"


def test_a_job_that_has_its_outcome_is_dropped(deliver, redis):
    redis.set("celery-task-meta-job", json.dumps({"status": "SUCCESS"}))
    with pytest.raises(Ignore):
        deliver("x")


def test_a_job_whose_record_an_app_has_written_ends_with_a_code(deliver, redis):
    redis.set(job_key("job"), "text")
    with pytest.raises(JobError) as ended:
        deliver("x")
    assert ended.value.code == ErrorCode.INTERNAL
    assert job_key("job") in ended.value.message


@pytest.mark.parametrize(
    ("end", "num_lost", "has_delay"),
    [
        (EngineDied(was_inside=True), 1, False),
        (EngineDied(), 0, False),
        (RedisConnectionError("away"), 0, True),
    ],
)
def test_a_job_without_an_outcome_goes_back_and_counts_if_it_was_in_an_engine_that_died(
    deliver, computation, redis, end, num_lost, has_delay
):
    computation.end = end
    with pytest.raises(Requeued) as back:
        deliver("x")
    assert (back.value.delay_s > 0) == has_delay
    assert (lost(redis), is_claimed(redis)) == (num_lost, False)


def test_a_suspect_is_computed_in_isolation_and_others_are_not(deliver, process, redis):
    deliver("x")
    assert process.isolation.num_computed == 0
    process.claims.release("job", "x", "handed back")
    make_suspect(redis)
    assert deliver("y") == RESULT
    assert process.isolation.num_computed == 1


def test_a_suspect_that_ended_two_processes_alone_ends_with_a_code(deliver, process, redis):
    make_suspect(redis)
    process.isolation.ends = [ChildEnded("isolation", -9), ChildEnded("isolation", 70)]
    with pytest.raises(Requeued):
        deliver("x")
    with pytest.raises(JobError) as ended:
        deliver("y")
    assert (ended.value.code, ended.value.details) == (ErrorCode.WORKER_LOST, {"exit_status": 70})


def test_if_another_worker_has_the_suspect_nothing_is_counted(deliver, process, redis):
    make_suspect(redis)

    class TakenAway(ChildEnded):
        def __init__(self) -> None:
            super().__init__("isolation", -9)

    def compute(*_: object) -> None:
        redis.hset(job_key("job"), "holder", "other")
        raise TakenAway

    process.isolation.compute = compute
    with pytest.raises(Ignore):
        deliver("x")
    assert not redis.hexists(job_key("job"), "lost_alone")


@pytest.mark.parametrize(
    "end", [RetryLater("busy", 1.0), ChildUnavailable(JobError(ErrorCode.OUT_OF_MEMORY, "full"))]
)
def test_a_suspect_that_could_not_be_computed_comes_again_later(deliver, process, redis, end):
    make_suspect(redis)
    process.isolation.ends = [end]
    with pytest.raises(Requeued) as back:
        deliver("x")
    assert back.value.delay_s > 0
    assert (lost(redis), is_claimed(redis)) == (2, False)
    assert not redis.hexists(job_key("job"), "lost_alone")


def test_a_suspect_that_can_never_be_computed_ends_with_the_reason(deliver, process, redis):
    make_suspect(redis)
    for delivery in range(1, isolation.MAX_POSTPONED + 1):
        process.isolation.ends = [ChildUnavailable(JobError(ErrorCode.OUT_OF_MEMORY, "full"))]
        with pytest.raises(Requeued if delivery < isolation.MAX_POSTPONED else JobError) as ended:
            deliver(str(delivery))
    assert ended.value.code == ErrorCode.OUT_OF_MEMORY


def test_a_suspect_is_given_up_somewhat_after_its_deadline(deliver, process, redis, monkeypatch):
    make_suspect(redis)
    monkeypatch.setattr(isolation, "LATE_GRACE_S", 0.05)

    def compute(*arguments: Any) -> None:
        context = arguments[-1]
        while not context.is_cancelled():
            time.sleep(0.01)

    process.isolation.compute = compute
    with pytest.raises(JobError) as ended:
        deliver("x", {"deadline_s": 0.05})
    assert ended.value.code == ErrorCode.DEADLINE


@pytest.mark.parametrize("deadline_s", ["1", 10**400, float("nan"), [1]])
def test_a_suspect_is_checked_before_it_is_computed_alone(deliver, process, redis, deadline_s):
    make_suspect(redis)
    with pytest.raises(JobError) as refused:
        deliver("x", {"deadline_s": deadline_s})
    assert refused.value.field == "deadline_s"
    assert process.isolation.num_computed == 0


@pytest.fixture
def endless(computation, monkeypatch):
    """Computations that call this in each round, and never end."""

    def each_round(call: Callable[[], object]) -> None:
        monkeypatch.setattr(computation, "advance", lambda _: call() and False)
        monkeypatch.setattr(computation, "new_progress", lambda _: None, raising=False)

    return each_round


def test_an_attempt_ends_if_another_worker_has_the_job(deliver, process, redis, endless):
    def take_away() -> None:
        redis.hset(job_key("job"), "holder", "other")
        process.job_store.renew({"x": "job"}, timeout_s=TIMEOUT_S)

    endless(take_away)
    with pytest.raises(Ignore):
        deliver("x")


def test_a_job_goes_back_without_counting_once_a_stopping_worker_is_out_of_time(
    deliver, process, redis, endless
):
    endless(lambda: None)
    process.hand_back_at = time.monotonic()
    with pytest.raises(Requeued) as back:
        deliver("x")
    assert (back.value.requeue, back.value.delay_s) == (True, 0)
    assert (lost(redis), is_claimed(redis)) == (0, False)
