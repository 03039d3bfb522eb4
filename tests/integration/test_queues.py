"""Priorities, large and delayed jobs, and full queues, with real workers."""

import time
import urllib.request

import pandas as pd
import pytest
from celery import Celery
from redis import Redis

from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.client import ForecastClient
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import FORECAST_TASK, job_key
from kronos_client.redis.queues import large_key, list_key, queue_states
from kronos_model.bars.columns import COLUMNS
from tests.integration.conftest import PACED, StartWorker, WorkerUnderTest, submit_long_job
from tests.ports import free_port
from tests.waiting import WAIT_S
from worker.settings import WorkerSettings

ONE_AT_A_TIME = {"KRONOS_MAX_JOBS": "1", "KRONOS_MAX_SLOTS": "1", "OMP_NUM_THREADS": "1"}


@pytest.fixture
def connection(redis: LocalRedis):
    with Redis.from_url(redis.url, decode_responses=True) as connection:
        connection.flushall()
        yield connection


@pytest.fixture
def start(start_worker: StartWorker):
    """Starts workers that take one job at a time, and stops them behind the test."""
    started = []

    def start(*arguments: str, **settings: str) -> WorkerUnderTest:
        started.append(start_worker(*arguments, **ONE_AT_A_TIME, **settings))
        return started[-1]

    yield start
    assert [worker.stop() for worker in started] == [0] * len(started)


def plain_job(candles: pd.DataFrame) -> dict:
    series = {name: candles[name][:40].tolist() for name in COLUMNS}
    series |= {"id": "x", "timestamps": candles["timestamps"][:40].tolist()}
    return {"series": [series], "pred_len": 2}


def test_small_jobs_end_while_a_large_one_fills_the_only_worker(start_worker, connection, client, candles):
    worker = start_worker(KRONOS_MAX_SLOTS="16", OMP_NUM_THREADS="1").wait_until_ready()
    large = client.submit(candles[:40], pred_len=120, sample_count=256, priority="low")
    next(state for state in large.progress() if state.bars_done)
    for priority in ("high", "normal", "low"):
        small = client.forecast(candles[:40], pred_len=3, seed=7, priority=priority)
        assert large.peek() is None
        assert small.series == client.forecast(candles[:40], pred_len=3, seed=7).series
    large.cancel()
    assert worker.stop() == 0


def test_jobs_begin_in_the_order_of_their_priorities(redis, start, connection, client, candles):
    begun = []
    for number in range(3):
        for priority in ("low", "normal", "high"):
            job_id = f"{priority}-{number}"
            client.submit(candles[:40], pred_len=2, sample_count=1, priority=priority, job_id=job_id)
            begun.append(job_id)
    app = Celery(broker=redis.url, backend=redis.url, set_as_current=False)
    app.send_task(
        FORECAST_TASK, kwargs={"job": plain_job(candles)}, queue="cpu", priority=9, task_id="low-plain"
    )
    app.send_task(FORECAST_TASK, kwargs={"job": plain_job(candles)}, queue="cpu", task_id="high-plain")
    begun += ["low-plain", "high-plain"]
    assert queue_states(connection, 1000)["cpu"].lengths == {"high": 4, "normal": 3, "low": 4}

    port = free_port()
    start(KRONOS_METRICS_PORT=str(port)).wait_until_ready()
    for job_id in begun:
        app.AsyncResult(job_id).get(timeout=WAIT_S)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=WAIT_S) as answer:
        metrics = answer.read().decode()
    for priority in ("high", "normal", "low"):  # those that say when they were submitted
        assert f'kronos_job_wait_seconds_count{{priority="{priority}",queue="cpu"}} 3.0' in metrics
    begun.sort(key=lambda job_id: float(connection.hget(job_key(job_id), "received_at")))
    assert begun == [
        *("high-0", "high-1", "high-2", "high-plain"),
        *("normal-0", "normal-1", "normal-2"),
        *("low-0", "low-plain", "low-1", "low-2"),  # from two lists by turns
    ]


def test_a_full_queue_refuses_until_workers_have_made_room(redis, start, connection, candles):
    settings = WorkerSettings.load(redis_url=redis.url, max_queue_jobs=5)
    with ForecastClient(settings=settings) as client:
        accepted = [client.submit(candles[:40], pred_len=2) for _ in range(5)]
        with pytest.raises(JobError) as refused:
            client.submit(candles[:40], pred_len=2, job_id="refused")
        assert refused.value.code == ErrorCode.QUEUE_FULL
        assert not connection.exists(job_key("refused"))
        start().wait_until_ready()
        for handle in accepted:
            assert handle.wait(WAIT_S).series
        assert client.submit(candles[:40], pred_len=2, job_id="refused").wait(WAIT_S, forget=True).series
        deadline = time.monotonic() + WAIT_S
        while not any(one.jobs_per_s > 0 for one in client.workers()):
            assert time.monotonic() < deadline, client.workers()
            time.sleep(0.2)


def test_low_jobs_get_their_share_while_high_ones_never_end(start, connection, client, candles):
    start(*PACED, PACE_S="0.02")
    low = [client.submit(candles[:40], pred_len=2, sample_count=1, priority="low") for _ in range(3)]
    deadline = time.monotonic() + WAIT_S
    num_waiting, num_high = [], 0
    while not all(one.state().has_ended for one in low):
        assert time.monotonic() < deadline
        num_waiting.append(connection.llen(list_key("cpu", 0)))
        for _ in range(max(0, 30 - num_waiting[-1])):
            client.submit(candles[:40], pred_len=2, sample_count=1, priority="high")
            num_high += 1
        time.sleep(0.01)
    assert min(num_waiting[1:]) > 0  # else they would have had their turn anyway
    assert num_high - num_waiting[-1] >= 8  # high ones went first


def test_small_jobs_end_before_many_large_ones_and_large_ones_are_taken_later(
    start_worker, connection, client, candles
):
    worker = start_worker(KRONOS_MAX_SLOTS="16", OMP_NUM_THREADS="1").wait_until_ready()
    large = [submit_long_job(client, candles) for _ in range(4)]
    next(state for state in large[0].progress() if state.bars_done)
    assert client.forecast(candles[:40], pred_len=3, sample_count=1).series
    assert not any(one.peek() for one in large)
    second = large_key(list_key("cpu", 3))
    num_waiting = connection.llen(second)
    assert 1 <= num_waiting <= 2
    assert queue_states(connection, 1000)["cpu"].lengths["normal"] == num_waiting
    large[0].cancel()
    deadline = time.monotonic() + WAIT_S
    while connection.llen(second) == num_waiting:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for one in large[1:]:
        one.cancel()
    assert worker.stop() == 0


def test_an_idle_worker_takes_delayed_jobs_when_they_are_due(redis, start_worker, connection, candles):
    worker = start_worker(OMP_NUM_THREADS="1").wait_until_ready()
    app = Celery(broker=redis.url, backend=redis.url, set_as_current=False)
    sent_at = time.time()
    jobs = [
        app.send_task(FORECAST_TASK, kwargs={"job": plain_job(candles)}, queue="cpu", priority=3, countdown=2)
        for _ in range(80)  # more than it runs at once
    ]
    while not connection.exists(f"kronos:delayed:{list_key('cpu', 3)}"):
        assert time.time() < sent_at + WAIT_S
        time.sleep(0.01)
    for job in jobs:
        job.get(timeout=WAIT_S)
    received_at = [float(connection.hget(job_key(job.id), "received_at")) for job in jobs]
    assert min(received_at) >= sent_at + 2
    assert not connection.exists(f"kronos:delayed:{list_key('cpu', 3)}")
    assert worker.stop() == 0
