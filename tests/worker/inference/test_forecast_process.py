"""One process's model, state and announcement, with the checkpoint that the parity tests use."""

import json
import math
import threading
import time
from concurrent.futures import wait
from pathlib import Path

import pytest
import torch

from benchmarks.support.workload import series_request
from kronos_client.contract.names import job_key
from kronos_client.contract.worker_status import AnyWorkerStatus
from kronos_client.redis.routing import live_workers
from kronos_model.engine.memory import CPU_SLOTS
from kronos_model.errors import KronosError, OutOfMemory
from tests.waiting import WAIT_S, await_true
from tests.worker.inference.runs import ended, result_of, submit
from worker.inference import forecast_process, model_loader
from worker.inference.engine_thread import EngineDied, JobRun, ModelEngine
from worker.inference.forecast_process import ForecastProcess
from worker.inference.isolation_child import load_server
from worker.monitoring import heartbeat
from worker.settings import explain

PARITY = Path(__file__).parents[2] / "data" / "parity" / "a"
NODE = "test@host"


@pytest.fixture
def settings(settings):
    model, tokenizer = str(PARITY / "model"), str(PARITY / "tokenizer")
    return settings.model_copy(
        update={
            "model": model,
            "tokenizer": tokenizer,
            "device": "cpu",
            "engine": "torch",
            "max_context": 64,
            "drain_timeout_s": 50,
        }
    )


@pytest.fixture
def worker(settings):
    worker = ForecastProcess(settings, NODE)
    yield worker
    worker.stop()


def begin(worker: ForecastProcess, horizon: int, model: ModelEngine | None = None) -> JobRun:
    """Submit a job for a model, by default for the worker's own."""
    model = model or worker.server.models.own.engine
    return submit(worker.server.engine_thread, "job", [series_request(1, 20, horizon)], model)


def announced(redis) -> AnyWorkerStatus | None:
    workers = live_workers(redis)
    assert len(workers) <= 1
    return workers[0] if workers else None


def test_a_worker_is_seen_loading_ready_draining_and_gone(worker, redis, monkeypatch):
    seen_while_loading = []
    load_pair = model_loader.load_pair

    def watched(*args, **kwargs):
        await_true(lambda: announced(redis))
        seen_while_loading.append(announced(redis))
        return load_pair(*args, **kwargs)

    monkeypatch.setattr(model_loader, "load_pair", watched)
    worker.start()
    (seen,) = seen_while_loading
    assert (seen.state, seen.model, seen.models, seen.queue) == ("loading", None, (), "cpu")
    worker.ready()
    ready = announced(redis)
    assert (ready.state, ready.node, ready.device) == ("ready", NODE, "cpu")
    assert ready.model.id == str(PARITY / "model")
    assert (ready.max_context, ready.slots, ready.sequences_running) == (64, CPU_SLOTS, 0)
    assert ready.sequences_waiting == 0
    assert [model.id for model in ready.models] == [ready.model.id]
    assert ready.model_fields_set == seen.model_fields_set
    assert worker.hand_back_at == math.inf
    worker.drain()
    assert 0 < worker.hand_back_at - time.monotonic() <= 50
    worker.ready()  # called again after a reconnection
    await_true(lambda: announced(redis).state == "draining")
    worker.stop()
    assert announced(redis) is None


def test_a_claim_lost_to_another_worker_is_counted_once(worker, redis):
    worker.claims.hold("job", "token", time.monotonic())
    redis.hset(job_key("job"), "holder", "another worker's")
    for token in ("token", "token", "of another process"):
        worker.job_store.renew({token: "job"}, timeout_s=60)
    assert worker.metrics.registry.get_sample_value("kronos_jobs_repeated_total") == 1


def test_the_limits_follow_the_named_model(settings):
    names = "NeoQuasar/Kronos-mini,kronos-tiny"
    worker = ForecastProcess(settings.model_copy(update={"models": names, "max_context": None}), NODE)
    worker.start()
    models = worker.server.models
    limits = [models.limits_of(models.find(name)).max_pred_len for name in (None, *names.split(","))]
    assert limits == [512, 2048, 512]
    worker.stop()


def test_models_share_the_service_and_show_in_the_status(settings):
    worker = ForecastProcess(settings.model_copy(update={"models": "kronos-tiny", "dtype": "float32"}), NODE)
    worker.start()
    entry = worker.server.models.hold(worker.server.models.find("kronos-tiny"))
    assert wait([entry.loading], WAIT_S).done
    run = begin(worker, 3, entry.served.engine)
    ended(worker.server.engine_thread, run)
    assert result_of(run)[0].paths.shape == (1, 3, 6)
    status = worker.status()
    assert [(model.id, model.jobs) for model in status.models] == [
        (str(PARITY / "model"), 0),
        ("kronos-tiny", 1),
    ]
    assert (status.slots, status.max_models, status.dtype) == (2 * CPU_SLOTS, 2, "float32")
    assert status.limits["max_sample_count"] == 256
    engines = worker._hello()["engines"]
    assert engines == dict.fromkeys((str(PARITY / "model"), "kronos-tiny"), ("torch", None))
    worker.stop()


def test_the_load_of_the_last_seconds_is_in_the_status_and_in_the_metrics(worker):
    worker.start()
    model = str(PARITY / "model")
    idle = worker.status()
    assert (idle.bars_per_s, idle.mean_batch_size, idle.queue_wait_s) == (0.0, None, None)
    run = begin(worker, 4)
    ended(worker.server.engine_thread, run)
    registry = worker.metrics.registry
    bars = ("kronos_bars_generated_total", {"model": model})
    await_true(lambda: registry.get_sample_value(*bars) == 4)  # observed after the job's end
    status = worker.status()
    assert status.bars_per_s > 0
    assert status.mean_batch_size == 1
    assert status.queue_wait_s >= 0
    assert registry.get_sample_value("kronos_slots", {"model": model}) == CPU_SLOTS
    info = {"device": "cpu", "model": model, "queue": "cpu", "dtype": "float32", "engine": "torch"}
    assert registry.get_sample_value("kronos_worker_info", info) == 1


def test_the_isolated_process_has_the_engine_of_its_worker(settings, monkeypatch):
    """Also if it would choose another, and with the worker's warning."""
    worker = ForecastProcess(settings.model_copy(update={"engine": "auto"}), NODE)
    reason, asked = "the self-test failed", []
    build_engine = model_loader.build_engine

    def build(*args, kind, **kwargs):
        asked.append(kind)
        engine = build_engine(*args, kind="torch", **kwargs)
        engine.kind_reason = reason if kind == "auto" else None
        return engine

    monkeypatch.setattr(model_loader, "build_engine", build)
    worker.start()
    (model,) = worker.status().models
    assert model.engine == "torch"
    assert reason in model.engine_warning
    hello = json.loads(json.dumps(worker._hello()))
    server = load_server(worker.settings, hello)
    server.stop()
    assert asked == ["auto", "torch"]
    assert server.models.own.engine_warning == model.engine_warning
    hello["engines"] = {name: ["native", None] for name in hello["engines"]}
    with pytest.raises(KronosError, match="native engine, which cannot be used any more"):
        load_server(worker.settings, hello)
    worker.stop()


def test_a_worker_without_room_for_one_path_says_so_and_is_not_announced(settings, redis):
    worker = ForecastProcess(settings.model_copy(update={"memory_mb": 1, "max_context": 2048}), NODE)
    with pytest.raises(OutOfMemory) as refused:
        worker.start()
    assert "KRONOS_MEMORY_MB" in explain(refused.value)
    assert announced(redis) is None


@pytest.mark.parametrize(("threads", "expected"), [(7, 7), (None, 6)])
def test_the_engines_thread_alone_computes_in_parallel(settings, monkeypatch, threads, expected):
    events: list[object] = []
    load_pair = model_loader.load_pair
    owner = "kronos-engine"
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("kronos_model.devices.cores.num_cores", lambda: 6)
    monkeypatch.setattr(
        torch, "set_num_threads", lambda number: events.append((threading.current_thread().name, number))
    )
    monkeypatch.setattr(
        model_loader, "load_pair", lambda *a, **k: events.append("load") or load_pair(*a, **k)
    )
    worker = ForecastProcess(settings.model_copy(update={"threads": threads}), NODE)
    worker.start()
    worker.stop()
    assert events == [(threading.current_thread().name, 1), "load", (owner, expected)]
    assert worker.status().threads == expected


def test_a_worker_whose_engine_dies_is_ended(settings):
    is_ended = threading.Event()
    worker = ForecastProcess(settings, NODE, on_engine_death=is_ended.set)
    worker.start()
    assert not worker.is_dead

    def step() -> None:
        raise RuntimeError("not in any series")

    worker.server.models.own.engine.engine.step = step
    run = begin(worker, 1)
    assert is_ended.wait(WAIT_S)
    with pytest.raises(EngineDied):
        ended(worker.server.engine_thread, run)
    assert worker.is_dead
    worker.stop()


def test_an_announcement_in_progress_does_not_outlive_the_worker(settings, redis, monkeypatch):
    announce = heartbeat.announce

    def slow(*args):
        time.sleep(0.2)
        announce(*args)

    monkeypatch.setattr(heartbeat, "announce", slow)
    worker = ForecastProcess(settings, NODE)
    worker.start()
    worker.stop()
    time.sleep(0.3)
    assert announced(redis) is None


def test_a_worker_whose_engine_is_dead_is_not_announced_any_more(worker, redis, monkeypatch):
    monkeypatch.setattr(heartbeat, "ANNOUNCEMENT_INTERVAL_S", 0.01)
    worker.start()
    worker.server.engine_thread.stop()

    def is_silent() -> bool:
        redis.flushall()
        time.sleep(0.1)
        return announced(redis) is None

    await_true(is_silent)


def test_a_model_that_does_not_fit_the_device_makes_this_a_worker_of_the_cpu(settings, monkeypatch):
    warning = "CUDA device 'cuda:0' requested but CUDA cannot hold the Kronos. Falling back to CPU."
    gpu, cpu = torch.device("cuda:0"), torch.device("cpu")
    monkeypatch.setattr(forecast_process, "resolve_device", lambda _: (gpu, None))
    monkeypatch.setattr(model_loader, "describe_device", lambda _: type("", (), {"memory_free_bytes": None}))
    monkeypatch.setattr(
        model_loader,
        "move_to_device",
        lambda module, device: (module, cpu, warning if device == gpu else None),
    )
    worker = ForecastProcess(settings, NODE)
    assert worker.queue == "gpu"
    worker.start()
    assert (worker.device, worker.device_warning, worker.queue) == (cpu, warning, "cpu")
    worker.stop()
