"""A job that no worker will get raises LOST in waiting clients; one that waits for long does not."""

import signal
import time

import pytest
from redis import Redis

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import PROGRESS_STATE, job_key
from kronos_client.redis.queues import DELIVERY_KEYS
from kronos_client.redis.routing import announce
from kronos_client.testing import fake_worker
from tests.integration.conftest import PACED, submit_long_job
from tests.waiting import WAIT_S

SETTINGS = {"KRONOS_VISIBILITY_TIMEOUT_S": "2", "PACE_S": "0.2"}
KEYS = DELIVERY_KEYS["forecast"]


def error_of(handle, timeout_s: float = WAIT_S) -> str:
    with pytest.raises(JobError) as raised:
        handle.wait(timeout_s)
    return raised.value.code


def await_progress(handle) -> None:
    deadline = time.monotonic() + WAIT_S
    while handle.state().name != PROGRESS_STATE:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_message_deleted_while_its_worker_was_dead_is_lost(start_worker, client, redis, candles):
    server = Redis.from_url(redis.url, decode_responses=True)
    first = start_worker(*PACED, **SETTINGS).wait_until_ready()
    running, waiting = (submit_long_job(client, candles) for _ in range(2))
    await_progress(running)
    # Longer than two timeouts: one job runs and one waits, and neither is lost.
    assert [error_of(running, 5), error_of(waiting, 0.1)] == [ErrorCode.TIMEOUT] * 2

    tag = server.hget(job_key(running.id), "holder")
    first.process.send_signal(signal.SIGKILL)
    first.process.wait(WAIT_S)
    assert server.hdel(KEYS.unacked, tag) == 1

    second = start_worker(*PACED, **SETTINGS).wait_until_ready()
    deadline = time.monotonic() + WAIT_S
    while server.hget(job_key(running.id), "at") != "none":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    announce(server, fake_worker(node="old@0.1.0"))
    assert error_of(running, 4.5) == ErrorCode.TIMEOUT
    server.delete("kronos:worker:old@0.1.0")
    with pytest.raises(JobError, match="safe to submit again") as lost:
        running.wait(WAIT_S)
    assert (lost.value.code, lost.value.details) == (ErrorCode.LOST, {"job_id": running.id})
    await_progress(waiting)
    waiting.cancel()

    short = client.submit(candles[:60], pred_len=2, sample_count=1)
    assert short.wait(WAIT_S).series
    second.stop()
