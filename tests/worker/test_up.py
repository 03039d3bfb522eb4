"""What each of several workers on one machine is given."""

import io

from rich.console import Console

from worker import up
from worker.settings import Settings
from worker.up import prefixed_lines, worker_names, worker_share

BARE = Settings.model_construct()


def test_a_worker_alone_is_as_the_environment_says():
    assert worker_names(1) == ["worker"]
    assert worker_share(BARE, 0, 1) == {}


def test_several_workers_share_the_cores(monkeypatch):
    monkeypatch.setattr(up, "num_cores", lambda: 8)
    assert worker_names(3) == ["worker-1", "worker-2", "worker-3"]
    assert [worker_share(BARE, index, 3) for index in range(3)] == [{"KRONOS_THREADS": "2"}] * 3
    assert worker_share(BARE, 0, 20) == {"KRONOS_THREADS": "1"}


def test_threads_that_the_user_set_stay(monkeypatch):
    monkeypatch.setattr(up, "num_cores", lambda: 8)
    assert worker_share(BARE.model_copy(update={"threads": 3}), 0, 2) == {}


def test_each_worker_serves_its_metrics_on_a_port_of_its_own(monkeypatch):
    monkeypatch.setattr(up, "num_cores", lambda: 2)
    settings = BARE.model_copy(update={"metrics_port": 9100})
    shares = [worker_share(settings, index, 2) for index in range(2)]
    assert [share["KRONOS_METRICS_PORT"] for share in shares] == ["9100", "9101"]


def test_a_workers_lines_have_its_name_and_are_printed_as_they_came():
    printed = io.StringIO()
    show = prefixed_lines(Console(file=printed), width=8)
    show("worker-2", "[red]x[/red]")
    show("redis", "y")
    assert printed.getvalue() == "worker-2 | [red]x[/red]\nredis    | y\n"
