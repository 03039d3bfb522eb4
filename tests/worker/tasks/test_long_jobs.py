"""How one delivery of a long job ends, on a scripted run and a real Redis."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from redis import exceptions as redis_errors

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import job_key, result_key
from kronos_client.redis.job_store import JobStore
from kronos_client.redis.queues import DELIVERY_KEYS
from worker.broker.claims import Claims
from worker.broker.outcomes import StoreHealth
from worker.tasks import long_jobs
from worker.tasks.attempt import Requeued
from worker.tasks.long_jobs import LongAttempt

KEYS = DELIVERY_KEYS["finetune"]
RESULT = {"name": "mine"}


@pytest.fixture
def deliver(redis) -> Callable[[], dict[str, Any]]:
    """One delivery of a job whose run succeeds."""
    store = JobStore(redis, 50, KEYS)
    process = SimpleNamespace(node="test", job_store=store, claims=Claims(store, 30.0), training=None)

    def deliver() -> dict[str, Any]:
        delivery = {"properties": {"delivery_tag": "tag"}, "delivery_info": {"routing_key": "cpu.finetune"}}
        request = SimpleNamespace(id="job", **delivery)
        run: Any = SimpleNamespace(run=lambda *_: RESULT)
        return LongAttempt(request, process, lambda *_: run).answer((), {"job": {"name": "mine"}})  # type: ignore[arg-type]

    deliver.store = store  # type: ignore[attr-defined]
    return deliver


def test_its_result_is_the_tasks_answer(deliver):
    assert deliver() == RESULT


def test_a_job_whose_record_is_another_apps_key_ends_with_a_code(deliver, redis):
    redis.set(job_key("job"), "text")
    with pytest.raises(JobError) as ended:
        deliver()
    assert ended.value.code == ErrorCode.INTERNAL


def test_a_field_of_the_record_that_an_app_has_written_does_not_keep_the_job_from_running(deliver, redis):
    redis.hset(job_key("job"), mapping={"received_at": "1", "holder": "x", "lost": "many"})
    assert deliver() == RESULT


@pytest.mark.parametrize(
    "error",
    [
        redis_errors.ConnectionError("away"),
        redis_errors.OutOfMemoryError("command not allowed"),
        redis_errors.ReadOnlyError("You can't write against a read only replica."),
        redis_errors.MasterDownError("Link with MASTER is down"),
        redis_errors.NoPermissionError("this user has no permissions"),
        redis_errors.NoScriptError("No matching script"),
        redis_errors.ResponseError(
            "MISCONF Redis is configured to save RDB snapshots, but it cannot persist on disk"
        ),
        redis_errors.ResponseError("BUSY Redis is busy running a script"),
        redis_errors.ResponseError(
            "Error running script (call to f_1): @user_script:1: Script killed by user"
        ),
    ],
)
def test_a_job_goes_back_if_redis_may_accept_it_later(deliver, redis, monkeypatch, error):
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(deliver.store, "begin_all", fail)
    monkeypatch.setattr(long_jobs, "store_health", health := StoreHealth())
    with pytest.raises(Requeued) as back:
        deliver()
    assert back.value.delay_s > 0
    assert not redis.exists(result_key("job"))
    assert health._refused_since is not None
