"""The training processes of a job, with small scripts in their place."""

import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.redis.job_store import Receipt
from tests.processes import await_end
from worker.monitoring.metrics import FinetuneMetrics
from worker.settings import WorkerSettings
from worker.training import finetune_run
from worker.training.finetune_run import FinetuneRun
from worker.training.job_folder import JobNotes
from worker.training.long_run import CLAIM_LOST, Interrupted

PREAMBLE = """
import json, os, signal, sys, threading, time
from pathlib import Path
def send(event, **content): print(json.dumps({"event": event, **content}), flush=True)
count = len(Path("starts").read_text()) if Path("starts").exists() else 0
Path("starts").write_text("x" * (count + 1))
saved = Path("run/predictor/state.safetensors")
saved.parent.mkdir(parents=True, exist_ok=True)
"""


CANCELLED = JobError(ErrorCode.CANCELLED, "the job was cancelled")
DRAINED = Interrupted("the worker shuts down")


class Supervised(FinetuneRun):
    """A job whose training is a script. It keeps the script's events, and registers nothing."""

    def __init__(self, folder: Path) -> None:
        metrics = FinetuneMetrics(lambda: None)
        process: Any = SimpleNamespace(
            settings=WorkerSettings.model_construct(), model_folder=folder, metrics=metrics
        )
        receipt = Receipt(time.time(), time.time(), False)
        job = {"name": "mine", "data": {"path": "a.csv"}}
        super().__init__(process, "job", job, "fingerprint", receipt, "cpu.finetune", math.inf)
        self.folder = self._folder.root
        self.folder.mkdir(parents=True)
        self.script = ""
        self.events: list[dict[str, Any]] = []
        self.stop: JobError | Interrupted | None = None
        self.on_event: Callable[[dict[str, Any]], object] = lambda _: None
        self.claim: Any = SimpleNamespace(is_safe=True, is_running_out=False)

    @property
    def num_starts(self) -> int:
        return len((self.folder / "starts").read_text())

    def work(self, script: str) -> dict[str, Any]:
        """All processes of the job."""
        self.script = script
        return self.run(self.claim)

    def train(self, script: str, *, grace_s: int = 10) -> tuple[Any, int]:
        """One process: its last event and exit status."""
        self.script, self._claim = script, self.claim
        self._notes = JobNotes("fingerprint", {}, 0.0)
        self.process.settings = self.process.settings.model_copy(update={"finetune_grace_s": grace_s})
        return self._train()

    def _prepare(self) -> None:
        self.folder.mkdir(exist_ok=True)

    def _command(self) -> list[str]:
        return [sys.executable, "-c", PREAMBLE + self.script]

    def _reason_to_stop(self) -> JobError | Interrupted | None:
        return self.stop

    def _on_event(self, event: Any) -> None:
        self.events.append(event)
        self.on_event(event)

    def _register(self, done: Any) -> dict[str, Any]:
        return dict(done)


@pytest.fixture
def supervised(tmp_path):
    return Supervised(tmp_path)


def test_events_are_received_and_other_output_is_not(supervised):
    script = """
print("plain words"); print("[1]"); print('{"no": "event"}'); print("words", file=sys.stderr)
send("progress", step=1); send("done", checkpoint="c"); sys.exit(0)
"""
    end = supervised.train(script)
    assert [event["event"] for event in supervised.events] == ["progress", "done"]
    assert end == ({"event": "done", "checkpoint": "c"}, 0)


def test_training_killed_between_saves_is_started_again(supervised):
    script = """
saved.write_text(str(count)); os.utime(saved, ns=(count, count + 1))
if count < 3: os.kill(os.getpid(), 9)
send("done")
"""
    assert supervised.work(script) == {"event": "done"}
    assert supervised.num_starts == 4


def test_stopped_training_may_save_first(supervised):
    script = """
wanted = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: wanted.set())
send("progress"); wanted.wait(); saved.write_text("x"); send("stopped"); sys.exit(75)
"""
    supervised.on_event = lambda _: setattr(supervised, "stop", CANCELLED)
    with pytest.raises(JobError, match="CANCELLED"):
        supervised.train(script)
    assert supervised._folder.saved_at_ns() > 0


def test_training_that_is_done_before_the_stop_is_done(supervised):
    script = """
wanted = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: wanted.set())
send("progress"); wanted.wait(); send("done")
"""
    supervised.on_event = lambda _: setattr(supervised, "stop", DRAINED)
    assert supervised.train(script) == ({"event": "done"}, 0)


IGNORES_STOP = (
    'signal.signal(signal.SIGTERM, signal.SIG_IGN); send("progress", pid=os.getpid()); time.sleep(600)'
)


def test_training_that_ignores_the_stop_is_killed_after_its_grace(supervised):
    supervised.on_event = lambda _: setattr(supervised, "stop", CANCELLED)
    with pytest.raises(JobError, match="CANCELLED"):
        supervised.train(IGNORES_STOP, grace_s=1)
    assert await_end(supervised.events[0]["pid"])


def test_training_that_must_end_is_killed_at_once(supervised):
    def end(_: Any) -> None:
        supervised.stop, supervised.claim.is_running_out = Interrupted(CLAIM_LOST), True

    supervised.on_event = end
    with pytest.raises(Interrupted, match="claim could not be renewed"):
        supervised.train(IGNORES_STOP, grace_s=600)
    assert await_end(supervised.events[0]["pid"])


def test_a_stop_is_obeyed_even_with_many_events(supervised):
    script = """
signal.signal(signal.SIGTERM, lambda *_: os._exit(75))
while True: send("progress")
"""
    supervised.on_event = lambda _: setattr(supervised, "stop", CANCELLED)
    with pytest.raises(JobError, match="CANCELLED"):
        supervised.train(script)


def test_training_waits_for_a_locked_folder(supervised, monkeypatch):
    script = """
if count < 1: send("error", code="RUN_LOCKED", message="m"); sys.exit(1)
send("done")
"""
    assert supervised.work(script) == {"event": "done"}
    (supervised.folder / "starts").unlink()
    monkeypatch.setattr(finetune_run, "LOCK_WAIT_S", 0.0)
    with pytest.raises(JobError) as ended:
        supervised.work(script)
    assert ended.value.code == ErrorCode.RUN_LOCKED


def test_processes_that_training_started_end_with_it(supervised):
    """A loader's process holds the pipes open, and would be waited for without end."""
    script = """
import subprocess
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
send("progress", pid=child.pid); send("done"); sys.stdout.flush(); os._exit(0)
"""
    assert supervised.train(script)[0] == {"event": "done"}
    assert await_end(supervised.events[0]["pid"])
