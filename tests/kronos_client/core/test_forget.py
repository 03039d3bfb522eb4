"""A result that was read is deleted, and its job stays the job that was done."""

import json

import pytest
from celery.app.task import Context
from redis.exceptions import ConnectionError as RedisConnectionError

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import job_key
from kronos_client.contract.schemas import example
from kronos_client.core.result_store import RedisResultStore
from kronos_client.redis.job_store import JobStore
from kronos_client.redis.queues import delivery_keys
from kronos_model.bars.synthetic import candles
from tests.taking import begin_one
from tests.waiting import WAIT_S

CANDLES = candles(seed=1, bars=60).as_dict()


@pytest.fixture
def done(client, backend):
    """A job that was done."""
    handle = client.submit(CANDLES, pred_len=5, job_id="done")
    worker = Context(properties={"delivery_tag": "first"})
    backend.mark_as_done(handle.id, example("forecast-result"), request=worker)
    return handle


def stored(redis):
    return json.loads(redis.get("celery-task-meta-done"))


def test_what_is_left_expires_when_the_result_would_have(done, redis):
    redis.expire("celery-task-meta-done", 77)
    assert done.forget()
    assert 70 < redis.ttl("celery-task-meta-done") <= 77
    assert redis.exists(job_key("done"))


def test_a_job_whose_result_was_deleted_is_not_computed_again(done, client, redis, settings, backend):
    assert done.forget()
    (queue,) = (key for key in redis.keys("cpu*"))
    again = client.submit(CANDLES, pred_len=5, job_id="done")
    assert redis.llen(queue) == 1  # the first message, which no worker has taken here
    with pytest.raises(JobError, match="RESULT_EXPIRED"):
        again.wait(WAIT_S)
    with pytest.raises(JobError, match="ID_CONFLICT"):
        client.submit(CANDLES, pred_len=6, job_id="done")
    # Delivered once more, it is not begun.
    records = JobStore(redis, settings.result_ttl_s, delivery_keys("test.unacked"))
    assert begin_one(records, "done", "{}", "tag", 60.0) == "ended"
    backend.mark_as_done("done", example("forecast-result"))
    assert stored(redis)["status"] == "FAILURE"


def test_a_failure_keeps_its_error(client, backend):
    handle = client.submit(CANDLES, pred_len=5)
    backend.mark_as_failure(handle.id, JobError(ErrorCode.DEADLINE, "too late"))
    assert not handle.forget()
    for _ in range(2):
        with pytest.raises(JobError, match="too late"):
            handle.wait(WAIT_S, forget=True)


def test_a_result_that_has_expired_meanwhile_does_not_come_back_as_an_error(done, redis):
    done.wait(WAIT_S)  # remembered by the handle
    redis.delete("celery-task-meta-done")
    assert not done.forget()
    assert not redis.exists("celery-task-meta-done")


def test_who_has_read_a_result_has_it_even_where_it_cannot_be_deleted(done, monkeypatch):
    async def lose(*_: object, **__: object) -> bool:
        raise RedisConnectionError("gone")

    monkeypatch.setattr(RedisResultStore, "forget", lose)
    assert done.wait(WAIT_S, forget=True).series
    with pytest.raises(JobError, match="BROKER_UNREACHABLE"):
        done.forget()
