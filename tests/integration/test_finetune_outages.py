"""Finetuning jobs on real workers: whatever happens to worker, training process or Redis, one outcome."""

import os
import signal
import time

import pytest
from redis import Redis

from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.client import ForecastClient
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.redis.queues import DELIVERY_KEYS
from tests.integration.conftest import WorkerUnderTest
from tests.integration.finetune_bench import LONG, Bench
from tests.ports import free_port
from tests.processes import await_end
from tests.waiting import WAIT_S, await_true


def test_training_that_outlasts_the_visibility_timeout_starts_once(bench):
    workers = [bench.worker().wait_until_ready() for _ in range(2)]
    handle = bench.submit(180)  # 9 s; sweeps come every 5 s
    assert handle.wait(WAIT_S).num_attempts == 1
    assert len(bench.lines("start")) == 1
    assert sorted(worker.log.read_text().count(f"[{handle.id}] received") for worker in workers) == [0, 1]
    for worker in workers:
        worker.stop()


def test_a_killed_worker_takes_its_training_along_and_another_goes_on(bench):
    first = bench.worker().wait_until_ready()
    handle = bench.submit(60)
    pid = bench.await_step(10)
    first.process.kill()
    assert await_end(pid)
    saved = bench.lines("step")[-1]["step"]
    second = bench.worker().wait_until_ready()
    result = handle.wait(WAIT_S)
    assert (result.worker, result.num_attempts, result.resumed) == (second.node, 2, True)
    assert bench.lines("start")[1]["step"] == saved
    bench.assert_trained_once(60)
    second.stop()


def test_a_killed_training_process_is_started_again(bench):
    worker = bench.worker().wait_until_ready()
    handle = bench.submit(40)
    for step in (5, 15):
        os.kill(bench.await_step(step), signal.SIGKILL)
    result = handle.wait(WAIT_S)
    assert (result.num_attempts, result.resumed) == (3, True)
    bench.assert_trained_once(40)
    worker.stop()


def test_training_that_is_always_killed_ends_with_a_code(bench):
    worker = bench.worker().wait_until_ready()
    with pytest.raises(JobError) as ended:
        bench.submit(40, seed=13).wait(WAIT_S)
    assert ended.value.code == ErrorCode.OUT_OF_MEMORY
    assert len(bench.lines("start")) == 2
    with pytest.raises(JobError) as ended:
        bench.submit(40, seed=14).wait(WAIT_S)
    assert (ended.value.code, ended.value.field) == (ErrorCode.TRAINING_DIVERGED, "config.predictor")
    worker.stop()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_a_drained_worker_hands_its_training_on(bench, redis, number):
    """Also where the connection is gone that the job was delivered by."""
    settings = {"KRONOS_VISIBILITY_TIMEOUT_S": "600"}  # so it is handed on, not found abandoned
    first = bench.worker(**settings).wait_until_ready()
    handle = bench.submit(LONG)
    bench.await_step(10)
    Redis.from_url(redis.url).client_kill_filter(_type="normal", skipme=True)
    second = bench.worker(**settings).wait_until_ready()
    first.process.send_signal(number)
    status = first.process.wait(WAIT_S)
    assert status == 0
    bench.hurry()
    result = handle.wait(WAIT_S)
    assert (result.worker, result.num_attempts) == (second.node, 2)
    assert bench.lines("start")[1]["step"] == bench.lines("stopped")[0]["step"]
    bench.assert_trained_once(LONG)
    second.stop()


def test_connections_that_are_lost_cost_nothing(bench, redis):
    workers = [bench.worker().wait_until_ready() for _ in range(2)]
    handle = bench.submit(120)
    connection = Redis.from_url(redis.url)
    for step in (10, 30, 50):
        bench.await_step(step)
        connection.client_kill_filter(_type="normal", skipme=True)
    other = bench.submit(5)
    assert handle.wait(WAIT_S).num_attempts == 1
    assert other.wait(WAIT_S).num_attempts == 1
    assert len(bench.lines("start")) == 2
    for worker in workers:
        assert worker.stop() == 0


def test_a_redis_that_restarts_costs_nothing_or_goes_on_from_the_save(tmp_path, tmp_path_factory):
    """Away for longer than the claim: training stops in time, and goes on when Redis is back."""
    port, data = free_port(), tmp_path_factory.mktemp("redis")
    running: list[WorkerUnderTest] = []

    def start(*arguments: str, **settings: str) -> WorkerUnderTest:
        command = ["celery", "-A", "worker.app", "worker", *arguments]
        running.append(WorkerUnderTest(before, tmp_path / f"{len(running)}.log", command, settings))
        return running[-1]

    try:
        with LocalRedis(data=data, port=port) as before, ForecastClient(before.url) as client:
            bench = Bench(tmp_path, start, client)
            for _ in range(2):
                bench.worker(KRONOS_VISIBILITY_TIMEOUT_S="4").wait_until_ready()
            handle = bench.submit(LONG)
            bench.await_step(10)
            time.sleep(1.2)  # appendfsync everysec
        await_true(lambda: bench.lines("stopped"))
        stopped_at = bench.lines("stopped")[0]["at"]
        time.sleep(1)
        with LocalRedis(data=data, port=port) as after, ForecastClient(after.url) as client:
            again = client.finetune(
                {"start": {"model": "kronos-tiny"}, "predictor": {"epochs": LONG}, "seed": 0},
                name="mine",
                data="candles.csv",
                job_id=handle.id,
            )
            await_true(lambda: len(bench.lines("start")) == 2)
            bench.hurry()
            result = again.wait(WAIT_S)
            assert result.num_attempts == 2
            assert bench.lines("start")[1]["at"] > stopped_at
            bench.assert_trained_once(LONG)
            connection = Redis.from_url(after.url)
            await_true(lambda: not connection.zcard(DELIVERY_KEYS["finetune"].renewed))
            assert connection.llen("cpu.finetune") == 0
            assert [worker.stop() for worker in running] == [0, 0]
    finally:
        for worker in running:
            worker.process.kill()


def test_a_worker_that_froze_for_longer_than_its_claim_gives_way(bench, redis):
    """Its training process runs on meanwhile, and holds the run's folder."""
    first = bench.worker().wait_until_ready()
    handle = bench.submit(LONG)
    bench.await_step(5)
    second = bench.worker().wait_until_ready()
    first.process.send_signal(signal.SIGSTOP)
    try:
        await_true(lambda: "still uses the run's folder" in second.log.read_text())
        assert len(bench.lines("start")) == 1
    finally:
        first.process.send_signal(signal.SIGCONT)
    await_true(lambda: len(bench.lines("start")) == 2)
    bench.hurry()
    assert handle.wait(WAIT_S).worker == second.node
    bench.assert_trained_once(LONG)
    assert [worker.stop() for worker in (first, second)] == [0, 0]
    assert Redis.from_url(redis.url).llen("cpu.finetune") == 0
