"""What workers take off their queue while they are busy, and how they report their load."""

import re
import time
import urllib.request

import pytest
from redis import Redis

from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.client import ForecastClient, ForecastHandle
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import CPU_QUEUE
from kronos_client.core.kinds import JobState
from kronos_client.redis.queues import DELIVERY_KEYS
from tests.integration.conftest import PACED, StartWorker, submit_long_job
from tests.ports import free_port
from tests.waiting import WAIT_S, await_true

NUM_SMALL = 24
NORMAL_LIST = f"{CPU_QUEUE}\x06\x163"


def end(handle: ForecastHandle) -> None:
    handle.cancel()
    with pytest.raises(JobError) as ended:
        handle.wait(WAIT_S)
    assert ended.value.code == ErrorCode.CANCELLED


def test_a_full_worker_takes_few_jobs_and_leaves_the_others_to_idle_ones(
    start_worker: StartWorker, client: ForecastClient, redis: LocalRedis, candles
):
    connection = Redis.from_url(redis.url, decode_responses=True)
    settings = {"KRONOS_MAX_SLOTS": "8", "KRONOS_MODELS": "kronos-tiny", "PACE_S": "0.05"}
    first = start_worker(*PACED, **settings).wait_until_ready()
    # The slots of a further model, which is idle, are no room for jobs of the first.
    client.forecast(candles[:40], pred_len=3, model="kronos-tiny", timeout_s=WAIT_S)
    large = submit_long_job(client, candles)
    await_true(lambda: large.state().name == "PROGRESS")
    # It takes small jobs for half its slots in addition to the large one, however many wait.
    small = [client.submit(candles[:40], pred_len=3, seed=n) for n in range(20)]
    held = []
    while not any(handle.state().has_ended for handle in small[:4]):  # those that it takes first
        held.append(connection.zcard(DELIVERY_KEYS["forecast"].renewed))
        time.sleep(0.01)
    assert max(held[:-1], default=0) <= 1 + 4  # one may have ended during the last look
    second = start_worker(KRONOS_MAX_SLOTS="8").wait_until_ready()
    small += [client.submit(candles[:40], pred_len=3, seed=n) for n in range(20)]
    assert {handle.wait(WAIT_S).worker for handle in small} == {first.node, second.node}
    assert not large.state().has_ended
    second.stop()
    last = client.submit(candles[:40], pred_len=3)
    end(large)
    assert last.wait(WAIT_S).worker == first.node
    first.stop()


def test_small_jobs_join_a_worker_until_its_slots_are_taken(
    start_worker: StartWorker, client: ForecastClient, redis: LocalRedis, candles
):
    connection = Redis.from_url(redis.url, decode_responses=True)
    worker = start_worker(*PACED, KRONOS_MAX_SLOTS="8", PACE_S="0.02").wait_until_ready()
    handles = [client.submit(candles[:8], pred_len=20, sample_count=2, seed=n) for n in range(NUM_SMALL)]
    held = []
    while any(not handle.state().has_ended for handle in handles):
        held.append(connection.zcard(DELIVERY_KEYS["forecast"].renewed))
        time.sleep(0.01)
    # Four jobs of two paths fill the slots. Twice the slots is the bound with those whose result is stored; a
    # message or two may still be acknowledged.
    assert 4 <= max(held) <= 18
    assert len({handle.wait(WAIT_S).series[0].mean["close"] for handle in handles}) == NUM_SMALL
    worker.stop()


def metrics_of(port: int) -> dict[str, float]:
    """The samples by name and labels, as Prometheus reads them."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=WAIT_S) as answer:
        lines = answer.read().decode().splitlines()
    samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in samples}


def test_metrics_status_and_progress_show_the_load(
    start_worker: StartWorker, client: ForecastClient, candles
):
    port = free_port()
    worker = start_worker(KRONOS_MAX_SLOTS="8", KRONOS_METRICS_PORT=str(port)).wait_until_ready()
    result = client.forecast(candles[:40], pred_len=3, sample_count=4, timeout_s=WAIT_S)
    refused = client.submit(candles[:40], pred_len=127 + 2)
    with pytest.raises(JobError):
        refused.wait(WAIT_S)
    model = result.model.id
    # A job is counted once its outcome is stored.
    failed = 'kronos_jobs_total{code="PRED_LEN_TOO_LONG",outcome="failed"}'
    await_true(lambda: failed in metrics_of(port))
    metrics = metrics_of(port)
    assert metrics['kronos_jobs_total{code="",outcome="done"}'] == metrics[failed] == 1
    assert metrics[f'kronos_bars_generated_total{{model="{model}"}}'] == 12
    assert metrics[f'kronos_prefill_bars_total{{model="{model}"}}'] >= 40
    assert metrics[f'kronos_queue_wait_seconds_count{{model="{model}"}}'] == 1
    (info,) = (name for name in metrics if name.startswith("kronos_worker_info"))
    assert re.search(r'device="cpu",dtype="float32",engine="\w+",model=".+",queue="cpu"', info)

    large = submit_long_job(client, candles)
    states: list[JobState] = []
    for state in large.progress():
        states.append(state)
        if state.bars_done:
            break
    assert states[-1].bars_total == 16 * 256 * 120
    metrics = metrics_of(port)
    assert metrics["kronos_jobs_running"] == 1
    assert metrics[f'kronos_slots{{model="{model}"}}'] == 8
    assert metrics[f'kronos_sequences_running{{model="{model}"}}'] == 8
    assert metrics[f'kronos_sequences_waiting{{model="{model}"}}'] > 8
    await_true(lambda: worker.announcements()[0]["bars_per_s"] > 0)
    (status,) = worker.announcements()
    assert (status["sequences_running"], status["slots"]) == (8, 8)
    assert status["sequences_waiting"] > 8
    assert 0 < status["mean_batch_size"] <= 8
    (job,) = status["jobs_running"]
    assert (job["id"], job["bars_total"], status["num_jobs_running"]) == (large.id, 16 * 256 * 120, 1)
    assert 0 < job["bars_done"] < job["bars_total"]
    end(large)
    await_true(lambda: metrics_of(port)[f'kronos_sequences_running{{model="{model}"}}'] == 0)
    worker.stop()
