"""A real worker on a real GPU."""

import pytest

from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.client import ForecastClient
from tests import gpu
from tests.integration.conftest import StartWorker
from tests.waiting import WAIT_S

pytestmark = pytest.mark.gpu

CASES = [
    pytest.param("cuda:0", "float32", id="first-float32"),
    pytest.param("cuda:0", "bfloat16", id="first-bfloat16"),
    pytest.param("cuda:1", "float32", id="second-float32"),
]


@pytest.mark.parametrize(("device", "dtype"), CASES)
def test_jobs_run_on_the_gpu_of_the_worker(
    start_worker: StartWorker, redis: LocalRedis, candles, record_property, device, dtype
):
    if device == "cuda:1" and gpu.num_gpus() < 2:
        pytest.skip("this machine has one GPU: run it where there are two")
    worker = start_worker(KRONOS_DEVICE=device, KRONOS_DTYPE=dtype, may_fork=False).wait_until_ready()
    (status,) = worker.announcements()
    assert (status["device"], status["device_warning"], status["queue"]) == (device, None, "gpu")
    with ForecastClient(redis.url) as client:  # made after the worker: it routes to the gpu queue
        handles = [
            client.submit(candles[: 40 + seed], pred_len=5, sample_count=4, seed=seed) for seed in range(100)
        ]
        results = [handle.wait(WAIT_S) for handle in handles]
    assert {(one.device, one.queue, one.device_warning) for one in results} == {(device, "gpu", None)}
    described = worker.announcements()[0]["device_description"]
    assert described["kind"] == "cuda"
    used = described["memory_total_bytes"] - described["memory_free_bytes"]
    busy = described["utilisation_percent"]
    record_property(
        "slots:", f"{status['slots']}, memory in use {used / 2**30:.1f} GiB, utilisation {busy} %"
    )
    assert worker.stop() == 0


def test_a_gpu_that_fails_ends_the_worker_and_not_the_job(
    start_worker: StartWorker, redis: LocalRedis, candles, tmp_path
):
    """Every later call of its process fails too, so that a new process must go on."""
    faults = {"FAULTY_ENGINE": str(tmp_path), "KRONOS_DEVICE": "cuda:0", "may_fork": False}
    first = start_worker("--include", "tests.faults.faulty_engine", **faults).wait_until_ready()
    (tmp_path / "lose-device").touch()
    with ForecastClient(redis.url) as client:
        handle = client.submit(candles[:40], pred_len=5, seed=1)
        assert first.process.wait(WAIT_S) == 70
        start_worker(KRONOS_DEVICE="cuda:0", may_fork=False).wait_until_ready()
        assert handle.wait(WAIT_S).device == "cuda:0"
