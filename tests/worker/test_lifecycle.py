"""What happens before a worker takes its first job: its pool, its device, its queue."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import click
import pytest
import torch
from celery import signals
from celery.bin.worker import worker as worker_command
from celery.worker.consumer.gossip import Gossip

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_model.errors import CheckpointMissing
from worker import lifecycle
from worker.broker.service_order import ALL_ROOM
from worker.config import make_worker_app
from worker.inference.capacity import MAX_CALLBACK_JOBS
from worker.inference.forced_shutdown import end_worker
from worker.inference.pools import WaitingThreadsPool
from worker.inference.probe import ProbeError
from worker.monitoring.metrics import JobMetrics
from worker.process import WorkerProcess

IGNORED = [
    ("--pool", "prefork"),
    ("--pool", "solo"),
    ("--pool", "threads"),
    ("--concurrency", "5"),
    ("--concurrency", "auto"),
    ("--autoscale", "10,2"),
    ("--time-limit", "3"),
    ("--soft-time-limit", "3"),
]


@pytest.fixture(autouse=True)
def machine(settings, monkeypatch):
    monkeypatch.setattr(lifecycle, "get_settings", lambda: settings)
    lifecycle.probed_device.cache_clear()
    # Module state that signals change.
    monkeypatch.setattr(lifecycle.rounds, "calls", [])
    monkeypatch.setattr(lifecycle.current, "process", None)
    monkeypatch.setattr(lifecycle.current, "is_ending", False)
    monkeypatch.setattr(lifecycle.current, "is_draining", False)


def chosen(*arguments: str, **defaults: Any) -> tuple[type, int, Any]:
    """Pool, concurrency and autoscale of a worker started with these arguments; defaults as Celery's."""
    context = worker_command.make_context(
        "worker", list(arguments), obj=SimpleNamespace(app=lifecycle.app, quiet=True), default_map=defaults
    )
    given = context.params
    # As Celery hands them to the worker before the signal.
    sender = SimpleNamespace(pool_cls=given["pool"], concurrency=given["concurrency"], options=dict(given))
    with context.scope(cleanup=False):
        lifecycle.choose_pool(sender)
    return sender.pool_cls, sender.concurrency, sender.options["autoscale"]


@pytest.mark.parametrize("role", ["forecast", "finetune"])
def test_whatever_pool_is_asked_for_a_worker_has_its_own_and_says_so_in_one_line(
    settings, monkeypatch, tmp_path, caplog, role
):
    given = settings.model_copy(update={"role": role, "model_folder": tmp_path})
    monkeypatch.setattr(lifecycle, "get_settings", lambda: given)
    own = (WaitingThreadsPool, MAX_CALLBACK_JOBS) if role == "forecast" else (lifecycle.FinetuningPool, 1)
    assert chosen(pool="prefork", concurrency=9) == (*own, None)  # Celery's own defaults
    assert caplog.messages == []
    for arguments in [*IGNORED, sum(IGNORED, ())]:
        caplog.clear()
        assert chosen(*arguments) == (*own, None)
        (line,) = caplog.messages
        assert all(option in line for option in arguments if option.startswith("--"))


def test_a_named_queue_is_ignored_with_a_warning(caplog):
    chosen("--queues", "mine")
    assert "--queues is ignored" in caplog.text


def test_a_worker_that_is_started_from_code_has_the_same_pool():
    assert click.get_current_context(silent=True) is None
    sender = SimpleNamespace(pool_cls="solo", concurrency=None, options={"autoscale": "10,2"})
    lifecycle.choose_pool(sender)
    assert (sender.pool_cls, sender.concurrency) == (WaitingThreadsPool, MAX_CALLBACK_JOBS)
    assert sender.options["autoscale"] is None


class FakeProcess:
    """A ForecastProcess that loads nothing."""

    def __init__(self, *, queue: str = "cpu", error: Exception | None = None) -> None:
        self.queue = queue
        self.is_dead = False
        self.error = error
        self.calls: list[Any] = []
        self.metrics = JobMetrics(lambda: 0)
        self.outcomes = MagicMock()

    def __call__(self, settings: object, node: str, *, on_engine_death: Callable[[], None]) -> "FakeProcess":
        self.calls.append(node)
        self.settings = settings
        self.on_engine_death = on_engine_death
        return self

    def start(self) -> None:
        if self.error is not None:
            raise self.error
        self.calls.append("start")

    def __getattr__(self, name: str) -> Any:
        return lambda: self.calls.append(name)


class FakeWorker:
    """The part of Celery's worker that selects queues."""

    def __init__(self) -> None:
        self.selected: list[str] = []
        queues = SimpleNamespace(select=self.selected.extend)
        self.app = SimpleNamespace(amqp=SimpleNamespace(queues=queues))


def use(monkeypatch: pytest.MonkeyPatch, process: FakeProcess) -> FakeProcess:
    monkeypatch.setattr("worker.inference.forecast_process.ForecastProcess", process)
    return process


@pytest.mark.parametrize("queue", ["cpu", "gpu"])
def test_the_process_loads_and_its_device_is_its_queue(monkeypatch, queue):
    process, worker = use(monkeypatch, FakeProcess(queue=queue)), FakeWorker()
    lifecycle.set_up("node@host", worker)
    assert worker.selected == [queue]
    assert process.calls == ["node@host", "start"]
    assert WorkerProcess.current() is process
    frozen: list[bool] = []
    monkeypatch.setattr(lifecycle, "gc", SimpleNamespace(collect=dict, freeze=lambda: frozen.append(True)))
    lifecycle.announce_ready()
    assert frozen
    lifecycle.rounds.once.pop()()  # by Celery's event loop, which then has subscribed to control commands
    lifecycle.drain()
    lifecycle.stop()
    assert process.calls[2:] == ["ready", "drain", "stop"]
    assert process.on_engine_death is end_worker


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (CheckpointMissing("no folder /m."), "CHECKPOINT_MISSING: no folder /m. KRONOS_MODEL"),
        (MemoryError("everything is full"), "the worker cannot start"),
    ],
)
def test_a_worker_without_a_model_ends_before_it_takes_a_job(monkeypatch, caplog, error, line):
    use(monkeypatch, FakeProcess(error=error))
    worker = FakeWorker()
    with pytest.raises(SystemExit) as ended:
        lifecycle.set_up("node@host", worker)
    assert ended.value.code == 1
    assert worker.selected == []
    assert line in caplog.text


def tried(monkeypatch: pytest.MonkeyPatch, outcome: dict[str, Any] | Exception) -> None:
    """What the probe finds: a device, or an exception."""

    def run_probe(*_: object, **__: object) -> dict[str, Any]:
        if isinstance(outcome, Exception):
            raise outcome
        return {"devices": [outcome], "model": outcome.get("model")}

    monkeypatch.setattr(lifecycle, "run_probe", run_probe)


def test_a_workers_process_has_the_transport_that_takes_jobs_by_scripts(settings):
    with make_worker_app(settings) as app:
        assert app.connection_for_read().transport_cls == "redis"
        lifecycle.set_options(SimpleNamespace(app=app, options={}))
        connection = app.connection_for_read()
        assert type(connection.transport) is lifecycle.transport.Transport
        assert connection.as_uri().startswith("kronos://")


@pytest.mark.parametrize("process", [None, FakeProcess()])
def test_a_worker_that_is_interrupted_has_not_failed_but_one_that_broke_has(monkeypatch, process):
    monkeypatch.setattr(lifecycle.current, "process", process)
    worker = SimpleNamespace(exitcode=1)
    lifecycle.stop(sender=worker)
    assert worker.exitcode == 1
    lifecycle.drain(sender="node@host", sig="SIGINT", how="Warm", exitcode=1)
    lifecycle.stop(sender=worker)
    assert worker.exitcode == 0


def test_a_signal_may_interrupt_the_handler_of_the_one_before(monkeypatch):
    process = FakeProcess()
    process.drain = lambda: process.calls.append("drain") or lifecycle.drain(sig="SIGTERM")
    monkeypatch.setattr(lifecycle.current, "process", process)
    with (lock := signals.worker_shutting_down.lock):
        assert lock.acquire(blocking=False)
        lock.release()
        signals.worker_shutting_down.send(sender="node@host", sig="SIGTERM", how="Warm", exitcode=0)
    assert process.calls == ["drain"]


@pytest.fixture
def finetuning(settings, monkeypatch, tmp_path):
    settings = settings.model_copy(update={"role": "finetune", "model_folder": tmp_path})
    monkeypatch.setattr(lifecycle, "get_settings", lambda: settings)
    return settings


def test_a_finetuning_worker_asks_for_its_device_and_loads_nothing(finetuning, monkeypatch):
    forecasting, worker = use(monkeypatch, FakeProcess()), FakeWorker()
    tried(monkeypatch, {"device": "cuda:0", "warning": None, "description": {}, "num_gpus": 1})
    lifecycle.set_up("node@host", worker)
    process = WorkerProcess.current()
    assert (worker.selected, forecasting.calls) == (["gpu.finetune"], [])
    assert (worker.capacity, worker.claims) == (process.capacity, process.claims)
    # After a lost connection Celery counts only the jobs taken since, and would take a second one.
    assert worker.capacity.rooms({}).of_class == ALL_ROOM.of_class
    worker.capacity.take("a", num_paths=1)
    assert not worker.capacity.rooms({"a"})
    assert worker.capacity.rooms({}).of_class == ALL_ROOM.of_class
    lifecycle.drain()
    assert process.state == "draining"
    lifecycle.stop()


def named(*arguments: str) -> str:
    """The name of a worker started with these arguments; ``celery@there`` is Celery's own choice."""
    sender = SimpleNamespace(hostname="celery@there")
    context = worker_command.make_context(
        "worker", list(arguments), obj=SimpleNamespace(app=lifecycle.app, quiet=True)
    )
    with context.scope(cleanup=False):
        lifecycle.name_worker(sender)
    return str(sender.hostname)


@pytest.fixture
def here(monkeypatch):
    monkeypatch.setattr(lifecycle, "gethostname", lambda: "here")
    monkeypatch.setattr(lifecycle.os, "getpid", lambda: 7)


def test_a_worker_is_named_by_its_device_and_model(settings, monkeypatch, here):
    given = settings.model_copy(update={"device": "cuda:3", "model": "NeoQuasar/Kronos-base"})
    monkeypatch.setattr(lifecycle, "get_settings", lambda: given)
    asked = []
    monkeypatch.setattr(
        "kronos_model.devices.resolution.resolve_device",
        lambda wanted: asked.append(wanted) or (torch.device("cuda:0"), "why"),
    )
    assert named() == "forecast-cuda0-kronos-base-7@here"
    assert set(asked) == {"cuda:3"}


@pytest.mark.parametrize("arguments", [("--hostname", "mine@there"), ("-n", "mine@there")])
def test_a_name_that_was_given_stays(here, arguments):
    assert named(*arguments) == "celery@there"


def test_a_worker_that_is_started_from_code_keeps_its_name():
    sender = SimpleNamespace(hostname="mine@there")
    lifecycle.name_worker(sender)
    assert sender.hostname == "mine@there"


def test_a_finetuning_worker_is_named_by_its_device_without_torch(finetuning, monkeypatch, here):
    monkeypatch.setattr(
        "kronos_model.devices.resolution.resolve_device", lambda wanted: pytest.fail("torch ran")
    )
    tried(monkeypatch, {"device": "cpu"})
    assert named() == "finetune-cpu-7@here"


@pytest.mark.parametrize(
    ("outcome", "line"),
    [({"error": "INVALID_DEVICE: tpu"}, "INVALID_DEVICE: tpu"), (ProbeError("died"), "not be tested: died")],
)
def test_a_finetuning_worker_without_a_device_ends_with_one_line(
    finetuning, monkeypatch, caplog, outcome, line
):
    tried(monkeypatch, outcome)
    with pytest.raises(SystemExit):
        lifecycle.set_up("node@host", FakeWorker())
    assert line in caplog.text


def test_jobs_that_ended_are_counted_and_other_tasks_are_not():
    counted: list[str | None] = []
    process: Any = SimpleNamespace(
        metrics=SimpleNamespace(count_job=counted.append), settings=SimpleNamespace(log_format="text")
    )
    WorkerProcess.report_end(process, "kronos.finetune", "a", {"name": "mine"})
    WorkerProcess.report_end(process, "kronos.forecast", "b", JobError(ErrorCode.DISK_FULL, "full"))
    WorkerProcess.report_end(process, "kronos.status", "c", {})
    assert counted == [None, "DISK_FULL"]


def test_a_worker_stays_out_of_gossip():
    """By the option that Celery's own step reads."""
    sender = SimpleNamespace(app=MagicMock(), options={"hostname": "a@b"})
    lifecycle.set_options(sender)
    consumer = MagicMock(app=lifecycle.app, hostname="a@b", pid=1)
    assert Gossip(consumer, without_gossip=False).enabled
    assert not Gossip(consumer, **sender.options).enabled
