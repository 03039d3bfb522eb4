"""How workers start, announce themselves, share queues and stop."""

import contextlib
import io
import json
import os
import signal
import subprocess
import time
import urllib.request

import pytest
from redis import Redis
from rich.console import Console

from kronos_cli.commands.status import status_table
from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.client import ForecastClient
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.worker_status import WORKER_STATUS, ForecastWorkerStatus
from kronos_client.redis.queues import DELIVERY_KEYS
from kronos_client.redis.routing import announce, live_workers, withdraw
from kronos_client.testing import fake_worker
from kronos_model.devices.cores import num_cores
from tests import fork_server
from tests.integration.conftest import PACED, PARITY_SETTINGS, StartWorker, WorkerUnderTest
from tests.ports import free_port
from tests.waiting import WAIT_S, await_true

KRONOS = ("kronos_cli", "worker")


def kronos(redis: LocalRedis, *arguments: str) -> subprocess.CompletedProcess[str]:
    settings = {"KRONOS_REDIS_URL": redis.url, "COLUMNS": "250"}
    return fork_server.run(["kronos_cli", *arguments], os.environ | settings)


def render_table(workers: list[dict]) -> None:
    Console(file=io.StringIO()).print(status_table(workers))


@pytest.mark.parametrize(
    ("command", "arguments", "may_fork"),
    [
        ((), (), False),
        (KRONOS, (), True),
        (KRONOS, ("--pool", "prefork", "--concurrency", "2"), True),
        ((), ("--autoscale", "4,2", "--time-limit", "1"), True),
    ],
    ids=["celery", "kronos", "prefork", "autoscale"],
)
def test_every_way_to_start_forecasts_announces_and_stops(
    start_worker: StartWorker, client: ForecastClient, candles, command, arguments, may_fork
):
    worker = start_worker(*arguments, command=command, may_fork=may_fork).wait_until_ready()
    (announced,) = worker.announcements()
    assert announced["pid"] == worker.process.pid
    assert (announced["queue"], announced["device"]) == ("cpu", "cpu")
    handles = [client.submit(candles[:40], pred_len=3, seed=1) for _ in range(4)]
    assert {handle.wait(WAIT_S).worker for handle in handles} == {announced["node"]}
    log = worker.log.read_text()
    assert log.count("ready: role=forecast device=cpu") == 1
    ignored = [line for line in log.splitlines() if ": ignored, since" in line]
    assert len(ignored) == bool(arguments)
    assert all(option in ignored[0] for option in arguments if option.startswith("--"))
    assert worker.stop() == 0
    assert worker.announcements() == []


def test_several_processes_are_workers_of_their_own_that_share_cores_and_one_signal(
    redis, client, candles, tmp_path
):
    log, port = tmp_path / "log", free_port(2)
    settings = {"KRONOS_REDIS_URL": redis.url, "KRONOS_METRICS_PORT": str(port), "OMP_NUM_THREADS": ""}
    connection = Redis.from_url(redis.url, decode_responses=True)

    def ready() -> dict[int, ForecastWorkerStatus]:
        return {one.pid: one for one in live_workers(connection) if one.is_ready}

    with log.open("w") as output:
        command = [*KRONOS, "--processes", "2", "--pool", "prefork"]
        environment = os.environ | PARITY_SETTINGS | settings
        several = fork_server.Process(command, environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        await_true(lambda: len(ready()) == 2, "both are ready")
        workers = ready()
        assert several.pid not in workers
        assert {one.threads for one in workers.values()} == {max(1, num_cores() // 2)}
        for index in (0, 1):
            urllib.request.urlopen(f"http://127.0.0.1:{port + index}/metrics", timeout=5).close()
        killed = min(workers)
        os.kill(killed, signal.SIGKILL)
        await_true(lambda: len(ready().keys() - {killed}) == 2, "another one took its place")
        handles = [client.submit(candles[:40], pred_len=3, seed=1) for _ in range(8)]
        nodes = {one.node for one in ready().values()}
        assert {handle.wait(WAIT_S).worker for handle in handles} <= nodes
        several.send_signal(signal.SIGTERM)
        assert several.wait(WAIT_S) == 0, log.read_text()
        assert ready().keys() <= {killed}  # until its announcement expires
        assert "worker-1 | " in log.read_text()
    finally:
        several.kill()  # its workers end too
        connection.flushdb()  # the killed one's announcement


def test_status_shows_the_warning_of_a_worker_without_its_gpu(start_worker, client, candles, redis):
    worker = start_worker(KRONOS_DEVICE="cuda:0")
    while not worker.announcements():
        time.sleep(0.02)
        assert worker.process.poll() is None, worker.log.read_text()
    # While it is loading it is there already, whole, and so it is while it is busy.
    loading = worker.announcements()[0]
    assert loading["state"] in ("loading", "ready")
    render_table([WORKER_STATUS.validate_python(loading)])
    worker.wait_until_ready()
    assert loading.keys() == worker.announcements()[0].keys()
    busy = client.submit(candles[:120], pred_len=120, sample_count=32)
    shown = kronos(redis, "status")
    assert shown.returncode == 0, shown.stderr
    assert "CUDA device 'cuda:0' requested but CUDA not available" in " ".join(shown.stdout.split())
    (status,) = json.loads(kronos(redis, "status", "--json").stdout)
    assert (status["queue"], status["device"], status["requested_device"]) == ("cpu", "cpu", "cuda:0")
    assert client.forecast(candles[:40], pred_len=2, timeout_s=WAIT_S).queue == "cpu"
    busy.cancel()
    with contextlib.suppress(JobError):  # it may have come to its end meanwhile
        busy.wait(WAIT_S)
    worker.stop()


def test_jobs_of_one_path_fill_the_slots(start_worker, client, candles):
    worker = start_worker(*PACED, KRONOS_MAX_SLOTS="96", PACE_S="0.2").wait_until_ready()
    handles = [client.submit(candles[:40], pred_len=80, seed=seed) for seed in range(100)]
    await_true(lambda: worker.announcements()[0]["sequences_running"] == 96, "the slots are full")
    for handle in handles:
        handle.cancel()
    worker.stop()


def test_a_cpu_worker_stands_in_for_a_gpu_pool_that_is_gone(start_worker, client, candles, redis):
    """The GPU worker here is only an announcement; routing and failover read nothing else."""
    connection = Redis.from_url(redis.url, decode_responses=True)
    gpu = fake_worker("gpu", node="gpu@test")
    worker = start_worker(KRONOS_GPU_GRACE_S="1").wait_until_ready()
    announce(connection, gpu)
    with ForecastClient(redis.url) as fresh:
        jobs = {
            device: fresh.submit(candles[:40], pred_len=3, device=device)
            for device in ("auto", "cuda", "cpu")
        }
        strict = fresh.submit(candles[:40], pred_len=3, device="cuda", allow_fallback=False)
        assert {device: job.queue for device, job in jobs.items()} == {
            "auto": "gpu",
            "cuda": "gpu",
            "cpu": "cpu",
        }
        assert jobs["cpu"].wait(WAIT_S).device_warning is None
        withdraw(connection, "gpu@test")
        for device in ("auto", "cuda"):
            result = jobs[device].wait(WAIT_S)
            assert (result.device, result.queue) == ("cpu", "gpu")
            assert (result.device_warning is None) == (device == "auto")
        with pytest.raises(JobError) as refused:
            strict.wait(WAIT_S)
        assert refused.value.code == ErrorCode.NO_GPU_WORKER

    announce(connection, gpu)
    deadline = time.monotonic() + WAIT_S
    while "leaving queue gpu" not in worker.log.read_text() and time.monotonic() < deadline:
        announce(connection, gpu)
        time.sleep(0.2)
    with ForecastClient(redis.url) as fresh:
        waiting = fresh.submit(candles[:40], pred_len=3)
        assert waiting.queue == "gpu"
        time.sleep(1)
        assert waiting.state().name == "PENDING"
    withdraw(connection, "gpu@test")
    connection.flushdb()
    worker.stop()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"KRONOS_MODEL": "/nowhere/at-all"}, "/nowhere/at-all"),
        ({"KRONOS_TOKENIZER": "kronos-tiny"}, "CHECKPOINT_MISMATCH"),
        ({"KRONOS_DEVICE": "tpu"}, "cuda:N"),
        ({"KRONOS_MAX_JOBS": "many"}, "KRONOS_MAX_JOBS"),
        ({"KRONOS_REDIS_URL": "junk"}, "KRONOS_REDIS_URL"),
    ],
    ids=["missing", "mismatch", "device", "setting", "url"],
)
def test_a_worker_that_cannot_serve_stops_with_one_line(start_worker, settings, expected):
    worker = start_worker(command=KRONOS, **settings)
    assert worker.process.wait(WAIT_S) != 0
    log = worker.log.read_text()
    assert expected in log
    assert "Traceback" not in log


def test_without_settings_and_network_a_worker_names_the_ways_out(start_worker, tmp_path):
    worker = start_worker(
        command=KRONOS,
        KRONOS_MODEL="",
        KRONOS_TOKENIZER="",
        HF_HOME=str(tmp_path),
        HF_ENDPOINT="http://127.0.0.1:9",
    )
    assert worker.process.wait(WAIT_S) == 1
    (line,) = (line for line in worker.log.read_text().splitlines() if "CHECKPOINT_UNREACHABLE" in line)
    for part in ("NeoQuasar/Kronos-small", "KRONOS_MODEL", "kronos-tiny"):
        assert part in line


def test_a_killed_worker_loses_no_job(start_worker, client, candles, redis):
    settings = {"KRONOS_VISIBILITY_TIMEOUT_S": "3"}
    first = start_worker(*PACED, **settings, PACE_S="1").wait_until_ready()  # no job ends before the kill
    handles = [client.submit(candles[:120], pred_len=60, sample_count=4, seed=n) for n in range(8)]
    # kombu takes a message off the list a moment before it notes that it did: a kill just then loses it.
    connection = Redis.from_url(redis.url, decode_responses=True)
    while connection.zcard(DELIVERY_KEYS["forecast"].renewed) < len(handles):
        time.sleep(0.02)
    first.process.kill()
    first.process.wait(WAIT_S)
    second = start_worker(**settings).wait_until_ready()
    results = [handle.wait(WAIT_S) for handle in handles]
    assert len({result.series[0].mean["close"] for result in results}) == 8
    second.stop()


def test_a_job_that_outlasts_the_visibility_timeout_is_delivered_once(start_worker, client, candles):
    workers = [
        start_worker(*PACED, "--loglevel", "INFO", KRONOS_VISIBILITY_TIMEOUT_S="3", PACE_S="0.1")
        for _ in range(2)
    ]
    for worker in workers:
        worker.wait_until_ready()
    # Sweeps come every 5 s, so the job must last longer: as long as its deadline lets it, on any machine.
    handle = client.submit(candles[:8], pred_len=120, deadline_s=11)
    with pytest.raises(JobError) as ended:
        handle.wait(WAIT_S)
    assert ended.value.code == ErrorCode.DEADLINE
    received = [worker.log.read_text().count(f"[{handle.id}] received") for worker in workers]
    assert sorted(received) == [0, 1]
    for worker in workers:
        worker.stop()


def test_a_redis_that_restarts_under_a_running_job_costs_neither_worker_nor_job(
    candles, tmp_path, tmp_path_factory
):
    port = free_port()
    log = tmp_path_factory.mktemp("restart") / "worker.log"
    with LocalRedis(data=tmp_path, port=port) as before:
        command = ["celery", "-A", "worker.app", "worker", "--loglevel", "INFO", *PACED]
        settings = {"KRONOS_VISIBILITY_TIMEOUT_S": "4", "PACE_S": "0.05"}
        worker = WorkerUnderTest(before, log, command, settings)
        worker.wait_until_ready()
        with ForecastClient(before.url) as client:
            handle = client.submit(candles[:8], pred_len=120)
            while handle.state().name != "PROGRESS":
                time.sleep(0.05)
    time.sleep(2)
    try:
        with LocalRedis(data=tmp_path, port=port) as after, ForecastClient(after.url) as client:
            again = client.submit(candles[:8], pred_len=120, job_id=handle.id)
            assert again.wait(WAIT_S).series
            # What could not be acknowledged on the lost connection comes back, and is not computed again.
            connection = Redis.from_url(after.url)
            deadline = time.monotonic() + WAIT_S
            while connection.zcard(DELIVERY_KEYS["forecast"].renewed) and time.monotonic() < deadline:
                time.sleep(0.1)
            assert connection.zcard(DELIVERY_KEYS["forecast"].renewed) == 0
            assert worker.process.poll() is None, log.read_text()
            assert client.forecast(candles[:40], pred_len=2, timeout_s=WAIT_S).series
            assert worker.announcements()[0]["jobs_done"] <= 2
            assert worker.stop() == 0
            assert log.read_text().count("succeeded in") == 2  # said after the result is stored
    finally:
        if worker.process.poll() is None:
            worker.process.kill()


def test_the_client_says_when_redis_is_not_there(candles):
    with ForecastClient("redis://127.0.0.1:9/0") as unreachable:
        with pytest.raises(JobError) as failed:
            unreachable.submit(candles[:40], pred_len=3)
        assert failed.value.code == ErrorCode.BROKER_UNREACHABLE


def test_a_redis_that_was_full_for_a_while_costs_no_job(start_worker: StartWorker, client, redis, candles):
    worker = start_worker().wait_until_ready()
    connection = Redis.from_url(redis.url)
    running = client.submit(candles[:8], pred_len=120, sample_count=16)
    while running.state().name == "PENDING":
        time.sleep(0.01)
    connection.config_set("maxmemory", 1)
    try:
        time.sleep(3)  # longer than the job takes
    finally:
        connection.config_set("maxmemory", 0)
    assert len(running.wait(WAIT_S).series) == 1
    assert client.forecast(candles[:40], pred_len=3, timeout_s=WAIT_S).worker == worker.node
    worker.stop()
