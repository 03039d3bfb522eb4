"""One process's model, state and announcement, with the checkpoint that the parity tests use."""

import time
from pathlib import Path

import pytest
import torch

from benchmarks.support.workload import series_request
from kronos_model.errors import CheckpointError
from worker import process as process_module
from worker.preflight import preflight
from worker.process import WorkerProcess
from worker.routing import live_workers

PARITY = Path(__file__).parents[1] / "data" / "parity" / "a"
NODE = "test@host"


@pytest.fixture
def settings(settings):
    model, tokenizer = str(PARITY / "model"), str(PARITY / "tokenizer")
    return settings.model_copy(
        update={"model": model, "tokenizer": tokenizer, "device": "cpu", "max_context": 64}
    )


@pytest.fixture
def worker(settings):
    worker = WorkerProcess(settings, NODE)
    yield worker
    worker.stop()


def announced(redis) -> dict | None:
    workers = live_workers(redis)
    assert len(workers) <= 1
    return workers[0] if workers else None


def test_a_worker_is_seen_loading_ready_draining_and_gone(worker, redis, monkeypatch):
    seen_while_loading = []
    load_pair = process_module.load_pair

    def watched(*args, **kwargs):
        deadline = time.monotonic() + 5
        while announced(redis) is None and time.monotonic() < deadline:
            time.sleep(0.005)
        seen_while_loading.append(announced(redis))
        return load_pair(*args, **kwargs)

    monkeypatch.setattr(process_module, "load_pair", watched)
    with pytest.raises(RuntimeError, match="not loaded"):
        _ = worker.served
    worker.start()
    (loading,) = seen_while_loading
    assert (loading["state"], loading["model"], loading["queue"]) == ("loading", None, "cpu")
    worker.ready()
    ready = announced(redis)
    assert (ready["state"], ready["node"], ready["device"]) == ("ready", NODE, "cpu")
    assert ready["model"]["id"] == str(PARITY / "model")
    assert (ready["max_context"], ready["slots"], ready["slots_used"]) == (64, 64, 0)
    worker.drain()
    worker.ready()  # said again where the connection is made again
    deadline = time.monotonic() + 5
    while announced(redis)["state"] != "draining" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert announced(redis)["state"] == "draining"
    worker.stop()
    assert announced(redis) is None


def test_what_is_served_computes_within_the_limits_of_its_model(worker):
    worker.start()
    assert worker.limits.max_pred_len == 64
    run = worker.served.service.submit("job", [series_request(1, 20, 3)])
    assert worker.served.service.wait(run, 20)
    assert run.result()[0].paths.shape == (1, 3, 6)
    assert worker.served.num_parameters > 0


def test_a_worker_that_cannot_load_takes_its_announcement_back(settings, redis, tmp_path):
    worker = WorkerProcess(settings.model_copy(update={"model": str(tmp_path)}), NODE)
    with pytest.raises(CheckpointError):
        worker.start()
    assert announced(redis) is None


def test_an_announcement_on_its_way_does_not_outlive_the_worker(settings, redis, monkeypatch):
    announce = process_module.announce

    def slow(*args):
        time.sleep(0.2)
        announce(*args)

    monkeypatch.setattr(process_module, "announce", slow)
    worker = WorkerProcess(settings, NODE)
    worker.start()
    worker.stop()
    time.sleep(0.3)
    assert announced(redis) is None


def test_a_worker_whose_engine_is_dead_is_not_announced_any_more(worker, redis, monkeypatch):
    monkeypatch.setattr(process_module, "ANNOUNCEMENT_INTERVAL_S", 0.01)
    worker.start()
    worker.served.service.stop()
    time.sleep(0.1)
    redis.flushall()
    time.sleep(0.1)
    assert announced(redis) is None


def test_a_model_that_does_not_fit_the_device_is_on_the_cpu_whole(settings, monkeypatch):
    """Placing the tokenizer fails after the model was placed already."""
    warning = "CUDA device 'cuda:0' requested but CUDA cannot hold the KronosTokenizer. Falling back to CPU."

    def move(module, device, **_):
        if type(module).__name__ == "KronosTokenizer":
            return module, torch.device("cpu"), warning
        return module.to("meta"), device, None

    monkeypatch.setattr(process_module, "resolve_device", lambda _: (torch.device("cuda:0"), None))
    monkeypatch.setattr(process_module, "move_to_device", move)
    moved = []
    worker = WorkerProcess(settings, NODE)
    assert worker.queue == "gpu"
    pair = process_module.load_pair(settings.model, settings.tokenizer)
    monkeypatch.setattr(pair.model, "to", lambda device: moved.append(device))
    worker._place(pair)
    assert (worker.device.type, worker.device_warning, worker.queue) == ("cpu", warning, "cpu")
    assert moved[-1] == torch.device("cpu")


def test_preflight_says_the_device_or_why_not(settings, tmp_path):
    assert preflight(settings) == {"device": "cpu"}
    broken = preflight(settings.model_copy(update={"model": str(tmp_path)}))
    assert broken.keys() == {"error"}
    assert str(tmp_path) in broken["error"]
    assert preflight(settings.model_copy(update={"device": "tpu"}))["error"].startswith("INVALID_DEVICE")
