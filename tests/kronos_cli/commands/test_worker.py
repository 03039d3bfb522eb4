"""``kronos worker``: what it hands to Celery, and how several workers share a machine."""

import logging
from typing import Any

import pytest

from kronos_model.devices import cores
from kronos_model.processes.children import LineSink
from tests.kronos_cli.test_main import run
from worker.inference import probe

NUM_CORES = 6


@pytest.fixture(autouse=True)
def own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRONOS_DEVICE", "auto")  # which the command changes
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(cores, "num_cores", lambda: NUM_CORES)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The probe's report, which a test may change."""
    report = [{"device": "cpu"}]
    monkeypatch.setattr(probe, "run_probe", lambda names: {"devices": report})
    return report


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, device: Any) -> list[tuple[list[str], dict[str, str]]]:
    """Command line and environment of each process. None of them runs."""
    found: list[tuple[list[str], dict[str, str]]] = []

    class Children:
        def __init__(self, starts: Any, restarts: object) -> None:
            self.starts = starts

        def run(self) -> int:
            return max(start() for start in self.starts)

    def child(name: str, command: list[str], *, env: dict[str, str], sink: LineSink, **_: object) -> int:
        found.append((command, env))
        sink(name, "a line")
        return 70

    monkeypatch.setattr("kronos_cli.stack.restarts.WorkerProcesses", Children)
    monkeypatch.setattr("kronos_model.processes.children.ChildProcess", child)
    return found


def test_arguments_that_are_not_ours_go_to_celery_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []
    monkeypatch.setattr("kronos_cli.commands.worker.run_celery", given.append)
    theirs = ["--pool", "prefork", "-c", "2", "--autoscale=4,2", "-linfo", "-n", "mine@here", "-E"]
    assert run("worker", "--device", "cpu", *theirs).exit_code == 0
    assert given == [["worker", "--loglevel=INFO", *theirs]]


@pytest.mark.parametrize("num_processes", [2, 3, 20])
def test_several_workers_share_the_cores_and_have_ports_of_their_own(
    monkeypatch: pytest.MonkeyPatch, started: Any, num_processes: int
) -> None:
    monkeypatch.setenv("KRONOS_METRICS_PORT", "9100")
    outcome = run("worker", "--processes", str(num_processes), "--device", "cpu", "--pool", "solo")
    assert outcome.exit_code == 70
    assert len(started) == num_processes
    for index, (command, environment) in enumerate(started):
        assert command[-4:] == ["worker", "--loglevel=INFO", "--pool", "solo"]
        assert environment["KRONOS_METRICS_PORT"] == str(9100 + index)
        assert environment["KRONOS_THREADS"] == str(max(1, NUM_CORES // num_processes))
        assert environment["KRONOS_DEVICE"] == "cpu"


def test_lines_show_their_worker_and_if_they_cannot_be_written_the_workers_go_on(
    monkeypatch: pytest.MonkeyPatch, started: Any
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    assert run("worker", "--processes", "2").stderr == "worker-1 | a line\nworker-2 | a line\n"
    monkeypatch.setattr("kronos_cli.commands.worker.click.echo", full)
    assert run("worker", "--processes", "2").exit_code == 70


@pytest.mark.parametrize("name", [("-n", "mine"), ("-nmine",), ("--hostname=mine",), ("--hostname", "mine")])
def test_one_name_for_several_workers_is_refused(started: Any, name: tuple[str, ...]) -> None:
    outcome = run("worker", "--processes", "2", *name)
    assert (outcome.exit_code, started) == (2, [])
    assert "--hostname" in outcome.output


@pytest.mark.parametrize(("report", "is_shared"), [({"device": "cuda:0"}, True), ({"error": "no"}, False)])
def test_workers_that_share_a_gpu_say_so_once(
    started: Any, device: Any, caplog: pytest.LogCaptureFixture, report: dict[str, Any], is_shared: bool
) -> None:
    device[:] = [report]
    with caplog.at_level(logging.WARNING, "kronos_cli"):
        run("worker", "--processes", "3")
    assert [line for line in caplog.messages if "share cuda:0" in line] == caplog.messages
    assert len(caplog.messages) == is_shared
    assert len(started) == 3
