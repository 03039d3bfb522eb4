"""The child that computes suspects, without models."""

from types import SimpleNamespace
from typing import Any

import pytest

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.schemas import example
from kronos_model.errors import CheckpointMissing
from worker.inference import isolation_child as main
from worker.inference.isolation import EXIT_IDLE

RECEIPT = {"now": 2.0, "received_at": 1.0, "is_cancelled": False}


class ScriptedWorker:
    """Sends messages, then none; keeps the events."""

    def __init__(self, num_jobs: int) -> None:
        message = {"job_id": "a", "job": example("forecast-job"), "receipt": RECEIPT, "queue": "cpu"}
        self._messages = [message] * num_jobs
        self.events: list[tuple[str, dict[str, Any]]] = []

    def next_message(self, timeout_s: float) -> dict[str, Any]:
        if not self._messages:
            raise TimeoutError
        return self._messages.pop()

    def send(self, event: str, **content: Any) -> None:
        self.events.append((event, content))


@pytest.fixture
def server(monkeypatch):
    """As much of a model server as is needed, and an exit that a test survives."""

    def leave(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr(main.os, "_exit", leave)
    monkeypatch.setattr(main, "load_server", lambda settings, hello: SimpleNamespace())


def test_each_job_ends_in_one_event_and_without_jobs_the_child_ends(server, monkeypatch):
    outcomes = [{"series": []}, JobError(ErrorCode.NOT_FINITE, "row 3"), ValueError("a defect")]

    def compute(*_: object) -> dict[str, Any]:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(main, "compute", compute)
    worker = ScriptedWorker(3)
    with pytest.raises(SystemExit) as ended:
        main.run(worker, {})
    assert ended.value.code == EXIT_IDLE
    ready, result, refused, defect = worker.events
    assert (ready, result) == (("ready", {}), ("result", {"result": {"series": []}}))
    assert refused[1]["error"][:2] == (ErrorCode.NOT_FINITE, "row 3")
    assert defect[1]["error"][0] == ErrorCode.INTERNAL


def test_models_that_cannot_be_loaded_are_reported(server, monkeypatch):
    def fail(settings: object, hello: object) -> None:
        raise CheckpointMissing("not there")

    monkeypatch.setattr(main, "load_server", fail)
    worker = ScriptedWorker(0)
    with pytest.raises(SystemExit) as ended:
        main.run(worker, {})
    assert ended.value.code == 1
    ((event, content),) = worker.events
    assert (event, content["error"][0]) == ("unavailable", "CHECKPOINT_MISSING")
