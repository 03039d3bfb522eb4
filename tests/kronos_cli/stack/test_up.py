"""What each of several workers on one machine is given."""

import io
import socket
import sys
from pathlib import Path

import pytest
from rich.console import Console

from kronos_cli.settings import CliSettings
from kronos_cli.stack import up
from kronos_cli.stack.local_redis import LocalRedis
from kronos_cli.stack.processes import ProcessStack
from kronos_cli.stack.restarts import MAX_RESTARTS, Restarts
from kronos_cli.stack.up import (
    keep_running,
    prefixed_lines,
    shared_folders,
    start_api,
    worker_names,
    worker_share,
)
from kronos_model.processes.children import LocalStackError

BARE = CliSettings.model_construct()


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


def test_folders_are_below_the_data_unless_the_settings_name_them(tmp_path):
    folders = shared_folders(tmp_path / "new", BARE)
    assert folders == {
        "KRONOS_DATA_FOLDER": str(tmp_path / "new" / "data"),
        "KRONOS_MODEL_FOLDER": str(tmp_path / "new" / "models"),
    }
    assert all(Path(folder).is_dir() for folder in folders.values())
    theirs = BARE.model_copy(update={"model_folder": tmp_path / "mine"})
    assert shared_folders(tmp_path, theirs)["KRONOS_MODEL_FOLDER"] == str(tmp_path / "mine")


@pytest.mark.parametrize("place", ["file", "/proc/x"])
def test_data_that_cannot_be_kept_there_is_one_line_that_names_the_option(tmp_path, place):
    (tmp_path / "file").touch()
    data = tmp_path / place
    for keep in (lambda: LocalRedis(data=data / "redis").__enter__(), lambda: shared_folders(data, BARE)):
        with pytest.raises(LocalStackError, match="--data") as told:
            keep()
        assert "\n" not in str(told.value)


def test_a_folder_of_the_settings_is_named_by_its_variable(tmp_path):
    (tmp_path / "file").touch()
    theirs = BARE.model_copy(update={"model_folder": tmp_path / "file"})
    with pytest.raises(LocalStackError, match="give KRONOS_MODEL_FOLDER"):
        shared_folders(tmp_path, theirs)


def test_a_port_that_is_asked_for_and_taken_is_told_before_anything_starts(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        for options in (up.UpOptions(tmp_path, api_port=port), up.UpOptions(tmp_path, flower_port=port)):
            with pytest.raises(LocalStackError, match=f"port {port} is taken"):
                up.run_up(options, BARE)
        up.check_ports(up.UpOptions(tmp_path, api_port=port, api=False))
    assert list(tmp_path.iterdir()) == []


def test_without_the_packages_of_the_api_the_rest_runs(monkeypatch, tmp_path):
    monkeypatch.setattr(up, "API_PACKAGES", ("json", "no_such_package"))
    printed = io.StringIO()
    with ProcessStack() as stack:
        assert start_api(stack, up.UpOptions(tmp_path), BARE, {}, Console(file=printed)) is None
        assert stack.dead() is None
    assert printed.getvalue().startswith("No API and page: no_such_package not installed")


def test_a_process_that_crashes_again_and_again_ends_the_stack():
    printed = io.StringIO()
    with ProcessStack() as stack:
        stack.start("worker", [sys.executable, "-c", "raise SystemExit(70)"])
        dead = keep_running(stack, Restarts(), Console(file=printed))
        assert (dead.name, dead.exit_status) == ("worker", 70)
    said = " ".join(printed.getvalue().split())
    assert said.count("worker ended with status 70; it is started again, at most 5 times in 10 minutes.") == 5
    assert MAX_RESTARTS == 5


def test_a_process_that_refuses_to_start_ends_the_stack_at_once():
    printed = io.StringIO()
    with ProcessStack() as stack:
        stack.start("worker", [sys.executable, "-c", "raise SystemExit(1)"])
        assert keep_running(stack, Restarts(), Console(file=printed)).exit_status == 1
    assert printed.getvalue() == ""
