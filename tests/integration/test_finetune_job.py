"""Finetuning jobs on real workers: whatever happens to worker, training process or Redis, one outcome."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from tests.integration.conftest import StartWorker, WorkerUnderTest
from tests.integration.test_workers import kronos
from tests.worker.process_checks import await_end
from worker.celery_config import UNACKED_INDEX_KEYS
from worker.client import ForecastClient
from worker.clients.handle import FinetuneHandle
from worker.contract.errors import ErrorCode, JobError
from worker.contract.names import job_key
from worker.local import LocalRedis, free_port

WAIT_S = 60
STEP_S = 0.05
VISIBILITY_TIMEOUT_S = 2
FAKE = ("--include", "tests.integration.fake_training")


class Bench:
    """Folders of models and candles, a fake trainer's log, and workers that share them."""

    def __init__(self, folder: Path, start: StartWorker, client: ForecastClient) -> None:
        self.models, self.data, self.log = folder / "models", folder / "data", folder / "trainer.log"
        self.data.mkdir()
        (self.data / "candles.csv").write_text("timestamps,open,high,low,close\n")
        self.client = client
        self.workers: list[WorkerUnderTest] = []
        self._start = start

    @property
    def settings(self) -> dict[str, str]:
        return {
            "KRONOS_ROLE": "finetune",
            "KRONOS_MODEL_FOLDER": str(self.models),
            "KRONOS_DATA_FOLDER": str(self.data),
            "KRONOS_VISIBILITY_TIMEOUT_S": str(VISIBILITY_TIMEOUT_S),
            "KRONOS_FINETUNE_GRACE_S": "3",
            "FAKE_LOG": str(self.log),
            "FAKE_STEP_S": str(STEP_S),
            "WORLD_SIZE": "2",
        }

    def worker(self, *arguments: str, **settings: str) -> WorkerUnderTest:
        worker = self._start(*FAKE, "--loglevel", "INFO", *arguments, **self.settings | settings)
        self.workers.append(worker)
        return worker

    def submit(
        self, num_steps: int, *, seed: int = 0, data: Any = "candles.csv", **options: Any
    ) -> FinetuneHandle:
        config = {"start": {"model": "kronos-tiny"}, "predictor": {"epochs": num_steps}, "seed": seed}
        return self.client.finetune(config, name="mine", data=data, **options)

    def lines(self, what: str) -> list[dict[str, Any]]:
        if not self.log.exists():
            return []
        entries = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [entry for entry in entries if entry["what"] == what]

    def await_step(self, step: int) -> int:
        """Until training has come so far; the process's number."""
        await_true(lambda: any(line["step"] >= step for line in self.lines("step")))
        return int(self.lines("step")[-1]["pid"])

    def assert_trained_once(self, num_steps: int) -> None:
        """Each step was trained, and never did two processes train at once."""
        steps = sorted(self.lines("step"), key=lambda line: line["at"])
        assert {line["step"] for line in steps} == set(range(1, num_steps + 1))
        in_turn = [pid for pid, _ in groupby(line["pid"] for line in steps)]
        assert len(in_turn) == len(set(in_turn))
        assert len(self.lines("done")) == 1


def await_true(condition: Callable[[], object], timeout_s: float = WAIT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)


@pytest.fixture
def bench(
    tmp_path: Path, start_worker: StartWorker, client: ForecastClient, redis: LocalRedis
) -> Iterator[Bench]:
    bench = Bench(tmp_path, start_worker, client)
    yield bench
    for worker in bench.workers:  # else they take the jobs of the next test
        worker.process.kill()
        worker.process.wait(10)
    Redis.from_url(redis.url).flushall()


def test_a_job_becomes_a_registered_model_and_forecasts_go_on_meanwhile(bench, redis, start_worker, candles):
    worker = bench.worker().wait_until_ready()
    (announced,) = worker.announcements()
    assert (announced["role"], announced["queue"], announced["device"]) == ("finetune", "cpu.finetune", "cpu")
    assert "ready: role=finetune device=cpu" in worker.log.read_text()
    forecaster = start_worker().wait_until_ready()
    handle = bench.submit(200)
    assert handle.queue == "cpu.finetune"
    bench.await_step(1)
    assert bench.client.forecast(candles[:40], pred_len=2, timeout_s=WAIT_S).worker == forecaster.node
    assert not handle.state().has_ended
    await_true(lambda: (worker.announcements()[0]["training"] or {}).get("step"), 15)
    shown = kronos(redis, "status")
    assert shown.returncode == 0, shown.stderr
    assert "finetuning mine: predictor, epoch" in " ".join(shown.stdout.split())
    result = handle.wait(WAIT_S)
    assert result.model.id == "mine@1"
    assert (result.num_attempts, result.resumed, result.worker) == (1, False, worker.node)
    bench.assert_trained_once(200)
    (started,) = bench.lines("start")
    assert started["nice"] >= 10
    assert not started["group"]
    assert (bench.models / "mine" / "1" / "metadata.json").exists()
    assert not list(bench.models.glob(".runs/*/run/predictor"))
    worker.stop()
    forecaster.stop()


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
    assert await_end(pid, 3)
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
    handle = bench.submit(400)
    bench.await_step(10)
    Redis.from_url(redis.url).client_kill_filter(_type="normal", skipme=True)
    second = bench.worker(**settings).wait_until_ready()
    first.process.send_signal(number)
    status = first.process.wait(20)
    assert status == 0
    result = handle.wait(WAIT_S)
    assert (result.worker, result.num_attempts) == (second.node, 2)
    assert bench.lines("start")[1]["step"] == bench.lines("stopped")[0]["step"]
    bench.assert_trained_once(400)
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
    """Away for longer than the lease: training stops in time, and goes on when Redis is back."""
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
            handle = bench.submit(160)
            bench.await_step(10)
            time.sleep(1.2)  # appendfsync everysec
        await_true(lambda: bench.lines("stopped"), 10)
        stopped_at = bench.lines("stopped")[0]["at"]
        time.sleep(1)
        with LocalRedis(data=data, port=port) as after, ForecastClient(after.url) as client:
            again = client.finetune(
                {"start": {"model": "kronos-tiny"}, "predictor": {"epochs": 160}, "seed": 0},
                name="mine",
                data="candles.csv",
                job_id=handle.id,
            )
            result = again.wait(WAIT_S)
            assert result.num_attempts == 2
            assert bench.lines("start")[1]["at"] > stopped_at
            bench.assert_trained_once(160)
            connection = Redis.from_url(after.url)
            await_true(lambda: not connection.zcard(UNACKED_INDEX_KEYS["finetune"]), 30)
            assert connection.llen("cpu.finetune") == 0
            assert [worker.stop() for worker in running] == [0, 0]
    finally:
        for worker in running:
            worker.process.kill()


def test_a_cancelled_job_keeps_its_best_checkpoint(bench):
    worker = bench.worker().wait_until_ready()
    handle = bench.submit(1000)
    bench.await_step(5)
    handle.cancel()
    with pytest.raises(JobError) as ended:
        handle.wait(20)
    assert ended.value.code == ErrorCode.CANCELLED
    best = ended.value.details["best_checkpoint"]
    assert (bench.models / best).is_dir()
    assert best in ended.value.message
    assert not list(bench.models.glob(".runs/*/run/*/state.safetensors"))
    assert len(bench.lines("stopped")) == 1
    worker.stop()


def test_a_job_that_celery_terminates_is_cancelled_and_the_worker_goes_on(bench):
    """As Flower's button does it."""
    worker = bench.worker().wait_until_ready()
    handle = bench.submit(1000)
    bench.await_step(5)
    bench.client._app.control.revoke(handle.id, terminate=True)
    with pytest.raises(JobError) as ended:
        handle.wait(20)
    assert ended.value.code == ErrorCode.CANCELLED
    assert ended.value.details["best_checkpoint"]
    assert bench.submit(3, seed=1).wait(20).model.name == "mine"
    worker.stop()


def test_a_late_job_and_one_that_does_not_heed_its_end_are_ended(bench):
    worker = bench.worker(KRONOS_FINETUNE_TIME_LIMIT_S="6", KRONOS_FINETUNE_GRACE_S="1").wait_until_ready()
    with pytest.raises(JobError) as ended:
        bench.submit(1000, deadline_s=2).wait(20)
    assert (ended.value.code, ended.value.field) == (ErrorCode.DEADLINE, "deadline_s")
    with pytest.raises(JobError) as ended:
        bench.submit(1000, seed=15).wait(20)
    assert (ended.value.code, ended.value.field) == (ErrorCode.DEADLINE, None)
    assert "KRONOS_FINETUNE_TIME_LIMIT_S" in ended.value.message
    assert await_end(bench.lines("step")[-1]["pid"])
    worker.stop()


def test_nothing_outside_the_data_folder_can_be_named(bench, tmp_path):
    worker = bench.worker().wait_until_ready()
    outside = tmp_path / "secret.csv"
    outside.write_text("")
    (bench.data / "link.csv").symlink_to(outside)
    (bench.data / "folder").mkdir()
    (bench.data / "folder" / "inner.csv").symlink_to(outside)
    for path in ("link.csv", "folder", "nothing.csv"):
        with pytest.raises(JobError) as refused:
            bench.submit(5, data=path).wait(20)
        assert (refused.value.code, refused.value.field) == (ErrorCode.DATA_NOT_ALLOWED, "data.path")
    config = {"start": {"model": "kronos-tiny"}}
    payload = {"name": "mine", "config": config, "data": {"path": "../secret.csv"}}
    sent = bench.client._app.send_task("kronos.finetune", kwargs={"job": payload}, queue="cpu.finetune")
    with pytest.raises(JobError) as refused:
        sent.get(timeout=20)
    assert refused.value.code == ErrorCode.DATA_NOT_ALLOWED
    assert bench.lines("start") == []
    worker.stop()


def test_a_job_on_the_wrong_queue_is_answered(bench, start_worker):
    workers = [bench.worker().wait_until_ready(), start_worker().wait_until_ready()]
    for task, queue, right in (
        ("kronos.finetune", "cpu", "gpu.finetune"),
        ("kronos.forecast", "cpu.finetune", "gpu"),
    ):
        with pytest.raises(JobError) as refused:
            bench.client._app.send_task(task, kwargs={"job": {}}, queue=queue).get(timeout=20)
        assert refused.value.code == ErrorCode.INVALID_INPUT
        assert right in refused.value.details["queues"]
    for worker in workers:
        worker.stop()


def test_a_job_that_is_submitted_twice_is_trained_once(bench, redis):
    workers = [bench.worker().wait_until_ready() for _ in range(2)]
    handle = bench.submit(60)
    bench.await_step(5)
    again = bench.submit(60, job_id=handle.id)
    assert again.wait(WAIT_S) == handle.wait(WAIT_S)
    assert len(bench.lines("start")) == 1
    record = Redis.from_url(redis.url, decode_responses=True).hgetall(job_key(handle.id))
    assert "lease_token" not in record
    for worker in workers:
        worker.stop()


def test_a_worker_that_was_held_up_for_longer_than_its_lease_gives_way(bench):
    """Its training process runs on meanwhile, and holds the run's folder."""
    first = bench.worker().wait_until_ready()
    handle = bench.submit(240)
    bench.await_step(5)
    second = bench.worker().wait_until_ready()
    first.process.send_signal(signal.SIGSTOP)
    try:
        await_true(lambda: "still in the run's folder" in second.log.read_text(), 30)
        assert len(bench.lines("start")) == 1
    finally:
        first.process.send_signal(signal.SIGCONT)
    assert handle.wait(WAIT_S).worker == second.node
    bench.assert_trained_once(240)
    assert [worker.stop() for worker in (first, second)] == [0, 0]
    assert bench.client._redis.llen("cpu.finetune") == 0


def test_a_model_that_was_really_trained_is_forecast_with_at_once(bench, start_worker, candles):
    """The training process is the real one; the forecast worker was there before the model."""
    forecaster = start_worker(KRONOS_MODEL_FOLDER=str(bench.models)).wait_until_ready()
    worker = start_worker(**bench.settings).wait_until_ready()
    bench.workers += [worker, forecaster]
    shape = {"d_model": 16, "n_heads": 2, "ff_dim": 16}
    stage = {"epochs": 2, "batch_size": 4, "windows_per_epoch": 8, "validation_windows": 4}
    config = {
        "data": {"lookback": 16, "pred_len": 4},
        "start": {
            "model": shape | {"n_layers": 1, "s1_bits": 4, "s2_bits": 4},
            "tokenizer": shape
            | {"n_enc_layers": 2, "n_dec_layers": 2, "s1_bits": 4, "s2_bits": 4, "group_size": 4},
        },
        "tokenizer": stage,
        "predictor": stage,
        "evaluation": {"windows": 2, "sample_count": 2},
    }
    result = bench.client.finetune(config, name="real", data=candles).wait(WAIT_S)
    assert (result.model.id, result.parent["model"]) == ("real@1", "from scratch")
    assert result.verdict
    assert result.metrics.keys() == {"tokenizer", "predictor"}
    forecast = bench.client.forecast(candles[:16], pred_len=2, model="real", timeout_s=WAIT_S)
    assert (forecast.model.id, forecast.worker) == ("real", forecaster.node)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"KRONOS_MODEL_FOLDER": ""}, "KRONOS_MODEL_FOLDER is not set"),
        ({"KRONOS_MODEL_FOLDER": "/proc/nothing"}, "cannot be written"),
        ({"KRONOS_DATA_FOLDER": "/nothing"}, "KRONOS_DATA_FOLDER cannot be used"),
        ({"KRONOS_DEVICE": "tpu"}, "INVALID_DEVICE"),
    ],
)
def test_a_finetuning_worker_that_cannot_serve_stops_with_one_line(bench, settings, line):
    worker = bench.worker(**settings)
    assert worker.process.wait(60) == 1
    log = worker.log.read_text()
    assert line in log
    assert "Traceback" not in log
