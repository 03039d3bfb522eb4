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
from worker.inference import pools
from worker.inference.probe import ProbeError
from worker.inference.shutdown import EXIT_STATUS, end_child, end_worker
from worker.monitoring.metrics import JobMetrics
from worker.process import WorkerProcess, current_process
from worker.settings import WorkerSettings

MAX_JOBS = 17
MAX_THREADS = 21  # two more for each higher priority
NUM_CORES = 3


@pytest.fixture(autouse=True)
def machine(settings, monkeypatch):
    settings = settings.model_copy(update={"max_jobs": MAX_JOBS})
    monkeypatch.setattr(lifecycle, "get_settings", lambda: settings)
    monkeypatch.setattr(lifecycle, "num_cores", lambda: NUM_CORES)
    lifecycle.probed_device.cache_clear()
    # Module state that signals change.
    monkeypatch.setattr(lifecycle.current, "num_children", 0)
    monkeypatch.setattr(lifecycle.current, "process", None)
    monkeypatch.setattr(lifecycle.current, "is_ending", False)
    monkeypatch.setattr(lifecycle.current, "is_draining", False)


def chosen(*arguments: str, **defaults: Any) -> tuple[str, int]:
    """Pool and concurrency of a worker started with these arguments; defaults as Celery's configuration."""
    sender = SimpleNamespace(pool_cls=None, concurrency=None)
    context = worker_command.make_context(
        "worker", list(arguments), obj=SimpleNamespace(app=lifecycle.app, quiet=True), default_map=defaults
    )
    with context.scope(cleanup=False):
        # As Celery hands them to the worker before the signal.
        sender.pool_cls, sender.concurrency = context.params["pool"], context.params["concurrency"]
        lifecycle.choose_pool(sender)
    pool: Any = sender.pool_cls
    name = (
        pool
        if isinstance(pool, str)
        else pool.__name__
        if pool.__module__ in (lifecycle.__name__, pools.__name__)
        else pool.__module__
    )
    return name.rpartition(".")[2], sender.concurrency


@pytest.mark.parametrize(
    ("arguments", "expected", "num_children"),
    [
        ((), ("WaitingThreadsPool", MAX_THREADS), 0),
        (("--concurrency", "5"), ("WaitingThreadsPool", 5), 0),
        (("--pool", "threads"), ("WaitingThreadsPool", MAX_THREADS), 0),
        (("--pool", "prefork"), ("prefork", NUM_CORES), NUM_CORES),
        (("-P", "prefork", "-c", "2"), ("prefork", 2), 2),
        (("-P", "prefork", "-c", "auto"), ("prefork", NUM_CORES), NUM_CORES),
        (("--pool", "solo"), ("solo", 1), 0),
        (("--pool", "prefork", "-c", "2", "--autoscale", "5,2"), ("prefork", 2), 5),
    ],
)
def test_pool_and_concurrency_of_every_command_line(arguments, expected, num_children):
    assert chosen(*arguments) == expected
    assert lifecycle.current.num_children == num_children


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_a_pool_that_cannot_scale_refuses_to_start_with_autoscale(caplog, pool):
    with pytest.raises(SystemExit):
        chosen("--pool", pool, "--autoscale", "10,2")
    assert "--autoscale needs --pool prefork" in caplog.text


def test_a_handler_that_fails_ends_the_worker(monkeypatch, caplog):
    def fail() -> None:
        raise ValueError("a defect")

    monkeypatch.setattr(lifecycle, "probed_device", fail)
    monkeypatch.setattr(lifecycle.current, "num_children", 2)
    with pytest.raises(SystemExit) as ended:
        lifecycle.set_up("node", SimpleNamespace(app=lifecycle.app))
    assert ended.value.code == 1
    assert "the worker cannot start" in caplog.text


def test_a_named_queue_is_ignored_with_a_warning(caplog):
    chosen("--queues", "mine")
    assert "--queues is ignored" in caplog.text


def test_the_wait_after_which_low_jobs_moved_up_is_ignored_with_a_warning(monkeypatch, caplog):
    chosen()
    assert "KRONOS_LOW_PRIORITY_MAX_WAIT_S" not in caplog.text
    monkeypatch.setenv("KRONOS_LOW_PRIORITY_MAX_WAIT_S", "ten minutes")
    monkeypatch.setattr(lifecycle, "get_settings", WorkerSettings.load)
    chosen()
    assert "KRONOS_LOW_PRIORITY_MAX_WAIT_S is ignored" in caplog.text


def test_celerys_own_defaults_count_as_not_given():
    assert chosen(pool="prefork", concurrency=9) == ("WaitingThreadsPool", MAX_THREADS)


def test_a_worker_that_is_started_from_code_keeps_its_pool():
    assert click.get_current_context(silent=True) is None
    sender = SimpleNamespace(pool_cls="solo", concurrency=None)
    lifecycle.choose_pool(sender)
    assert (sender.pool_cls, sender.concurrency) == ("solo", 1)


class FakeProcess:
    """A ForecastProcess that loads nothing."""

    def __init__(self, *, queue: str = "cpu", error: Exception | None = None) -> None:
        self.queue = queue
        self.is_dead = False
        self.error = error
        self.calls: list[Any] = []
        self.metrics = JobMetrics(lambda: 0)

    def __call__(self, settings: object, node: str, *, on_engine_death: Callable[[], None]) -> "FakeProcess":
        self.calls.append(node)
        self.settings = settings
        self.on_engine_death = on_engine_death
        return self

    def start(self, num_processes: int) -> None:
        if self.error is not None:
            raise self.error
        self.calls.append(num_processes)

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
    assert process.calls == ["node@host", 1]
    assert current_process() is process
    lifecycle.announce_ready()
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


def test_the_parent_of_prefork_loads_nothing_and_asks_for_the_device(monkeypatch):
    process, worker = use(monkeypatch, FakeProcess()), FakeWorker()
    tried(monkeypatch, {"device": "cpu"})
    monkeypatch.setattr(lifecycle.current, "num_children", 4)
    lifecycle.set_up("node@host", worker)
    assert worker.selected == ["cpu"]
    assert process.calls == []
    with pytest.raises(RuntimeError, match="no model is loaded"):
        current_process()
    for signal in (lifecycle.announce_ready, lifecycle.drain, lifecycle.stop):
        signal()


@pytest.mark.parametrize(
    ("outcome", "line"),
    [
        ({"device": "cuda:0", "model": {"error": "no memory"}}, "--pool threads"),
        (
            {"device": "cpu", "model": {"error": "CHECKPOINT_MISSING: no folder"}},
            "CHECKPOINT_MISSING: no folder",
        ),
        ({"error": "INVALID_DEVICE: tpu"}, "INVALID_DEVICE: tpu"),
        (ProbeError("died"), "could not be tested: died"),
    ],
)
def test_prefork_is_refused_if_its_children_could_not_serve(monkeypatch, caplog, outcome, line):
    tried(monkeypatch, outcome)
    monkeypatch.setattr(lifecycle.current, "num_children", 4)
    with pytest.raises(SystemExit):
        lifecycle.set_up("node@host", FakeWorker())
    assert line in caplog.text


def test_each_child_of_prefork_loads_under_its_own_name(monkeypatch):
    process = use(monkeypatch, FakeProcess())
    monkeypatch.setattr(lifecycle.current, "num_children", 4)
    monkeypatch.setattr(lifecycle.billiard, "current_process", lambda: SimpleNamespace(index=2))
    lifecycle.set_up_child("node@host")
    assert process.calls == ["node@host/2", 4, "ready"]
    assert process.on_engine_death is end_child


@pytest.mark.parametrize(("port", "expected"), [(None, None), (9100, 9102)])
def test_each_child_of_prefork_serves_its_metrics_on_its_own_port(settings, monkeypatch, port, expected):
    process = use(monkeypatch, FakeProcess())
    given = settings.model_copy(update={"metrics_port": port})
    monkeypatch.setattr(lifecycle, "get_settings", lambda: given)
    monkeypatch.setattr(lifecycle.current, "num_children", 4)
    monkeypatch.setattr(lifecycle.billiard, "current_process", lambda: SimpleNamespace(index=2))
    lifecycle.set_up_child("node@host")
    assert process.settings.metrics_port == expected


def test_the_consumer_is_handed_capacity_and_claims_of_a_process_that_holds_the_model(monkeypatch):
    process, worker = use(monkeypatch, FakeProcess()), FakeWorker()
    process.capacity, process.claims = object(), object()
    lifecycle.set_up("node@host", worker)
    assert (worker.capacity, worker.claims) == (process.capacity, process.claims)


def test_a_workers_process_has_the_transport_that_takes_jobs_by_scripts(settings):
    with make_worker_app(settings) as app:
        assert app.connection_for_read().transport_cls == "redis"
        lifecycle.set_options(SimpleNamespace(app=app, options={}))
        connection = app.connection_for_read()
        assert type(connection.transport) is lifecycle.transport.Transport
        assert connection.as_uri().startswith("kronos://")


@pytest.mark.parametrize(("is_dead", "status"), [(False, 0), (True, EXIT_STATUS)])
def test_a_worker_whose_engine_died_ends_with_a_status_that_says_so(monkeypatch, is_dead, status):
    process = use(monkeypatch, FakeProcess())
    lifecycle.set_up("node@host", FakeWorker())
    process.is_dead = is_dead
    worker = SimpleNamespace(exitcode=0)
    lifecycle.stop(sender=worker)
    assert worker.exitcode == status
    lifecycle.stop(sender="node@host")  # a child's signal names its node


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


def test_the_solo_pool_does_not_load_twice(monkeypatch):
    process = use(monkeypatch, FakeProcess())
    lifecycle.set_up_child("node@host")  # the signal comes in the only process, which has loaded already
    assert process.calls == []


@pytest.fixture
def finetuning(settings, monkeypatch, tmp_path):
    settings = settings.model_copy(update={"role": "finetune", "model_folder": tmp_path})
    monkeypatch.setattr(lifecycle, "get_settings", lambda: settings)
    return settings


@pytest.mark.parametrize("arguments", [(), ("--pool", "threads"), ("--concurrency", "5")])
def test_a_finetuning_worker_has_one_thread(finetuning, arguments, caplog):
    assert chosen(*arguments) == ("FinetuningPool", 1)
    assert ("--concurrency is ignored" in caplog.text) == ("5" in arguments)


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_a_finetuning_worker_refuses_other_pools(finetuning, pool, caplog):
    with pytest.raises(SystemExit):
        chosen("--pool", pool)
    assert "use --pool threads" in caplog.text


def test_a_finetuning_worker_asks_for_its_device_and_loads_nothing(finetuning, monkeypatch):
    forecasting, worker = use(monkeypatch, FakeProcess()), FakeWorker()
    tried(monkeypatch, {"device": "cuda:0", "warning": None, "description": {}, "num_gpus": 1})
    lifecycle.set_up("node@host", worker)
    process = current_process()
    assert (worker.selected, forecasting.calls) == (["gpu.finetune"], [])
    assert worker.capacity is process.capacity
    # After a lost connection Celery counts only the jobs taken since, and would take a second one.
    worker.capacity.num_threads = 1
    assert worker.capacity.rooms({}) == ALL_ROOM
    worker.capacity.take("a", num_paths=1)
    assert not worker.capacity.rooms({"a"})
    assert worker.capacity.rooms({}) == ALL_ROOM
    lifecycle.drain()
    assert process.is_draining.is_set()
    lifecycle.stop()


def test_a_finetuning_worker_without_a_folder_for_models_ends_with_one_line(finetuning, monkeypatch, caplog):
    monkeypatch.setattr(
        lifecycle, "get_settings", lambda: finetuning.model_copy(update={"model_folder": None})
    )
    tried(monkeypatch, {"device": "cpu", "warning": None, "description": {}})
    with pytest.raises(SystemExit):
        lifecycle.set_up("node@host", FakeWorker())
    assert "KRONOS_MODEL_FOLDER is not set" in caplog.text


def named(*arguments: str) -> str:
    """The name of a worker started with these arguments; ``celery@there`` is Celery's own choice."""
    sender = SimpleNamespace(pool_cls=None, concurrency=None, hostname="celery@there")
    context = worker_command.make_context(
        "worker", list(arguments), obj=SimpleNamespace(app=lifecycle.app, quiet=True)
    )
    with context.scope(cleanup=False):
        sender.pool_cls, sender.concurrency = context.params["pool"], context.params["concurrency"]
        lifecycle.choose_pool(sender)
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


@pytest.mark.parametrize(("role", "arguments"), [("finetune", ()), ("forecast", ("--pool", "prefork"))])
def test_processes_that_must_not_run_torch_probe_their_device(
    settings, monkeypatch, here, tmp_path, role, arguments
):
    given = settings.model_copy(update={"role": role, "model_folder": tmp_path, "model": "kronos-tiny"})
    monkeypatch.setattr(lifecycle, "get_settings", lambda: given)
    monkeypatch.setattr(
        "kronos_model.devices.resolution.resolve_device", lambda wanted: pytest.fail("torch ran")
    )
    tried(monkeypatch, {"device": "cpu"})
    model = "-kronos-tiny" if role == "forecast" else ""
    assert named(*arguments) == f"{role}-cpu{model}-7@here"


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
