"""The supervisor of training processes, with small scripts in their place."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kronos_model.processes.children import LocalStackError
from kronos_model.processes.json_child import ORPHAN_GRACE_S
from tests.processes import await_end
from worker.training.child import Stop, Training, TrainingEnd

PREAMBLE = """
import json, os, signal, sys, threading, time
from pathlib import Path
def send(event, **content): print(json.dumps({"event": event, **content}), flush=True)
count = len(Path("starts").read_text()) if Path("starts").exists() else 0
Path("starts").write_text("x" * (count + 1))
"""


class Supervised:
    """Runs a script as training, and keeps its events."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events: list[dict[str, Any]] = []
        self.stop: Stop | None = None
        self.must_end = False
        self.on_event: Callable[[dict[str, Any]], object] = lambda _: None
        self.ends: list[TrainingEnd] = []

    @property
    def num_starts(self) -> int:
        return len((self.folder / "starts").read_text())

    def receive(self, event: Any) -> None:
        self.events.append(event)
        self.on_event(event)

    def run(self, script: str, *, grace_s: int = 10, lock_wait_s: float = 0) -> TrainingEnd:
        saved = self.folder / "saved"
        training = Training(
            [sys.executable, "-c", PREAMBLE + script],
            env=dict(os.environ),
            cwd=self.folder,
            grace_s=grace_s,
            saved_at=lambda: saved.stat().st_mtime_ns if saved.exists() else 0,
            lock_wait_s=lock_wait_s,
            on_event=self.receive,
            should_stop=lambda: self.stop,
            must_end=lambda: self.must_end,
            on_end=self.ends.append,
        )
        return training.run()


@pytest.fixture
def supervised(tmp_path):
    return Supervised(tmp_path)


def test_events_are_received_and_other_output_is_not(supervised):
    script = """
print("plain words"); print("[1]"); print('{"no": "event"}'); print("words", file=sys.stderr)
send("progress", step=1); send("done", checkpoint="c"); sys.exit(0)
"""
    end = supervised.run(script)
    assert [event["event"] for event in supervised.events] == ["progress", "done"]
    assert end == TrainingEnd({"event": "done", "checkpoint": "c"}, None, 0)


def test_its_own_error_is_its_end(supervised):
    end = supervised.run('send("error", code="DISK_FULL", message="m"); sys.exit(1)')
    assert (end.event["code"], end.exit_status) == ("DISK_FULL", 1)
    assert supervised.num_starts == 1


def test_training_killed_between_saves_is_started_again(supervised):
    script = """
Path("saved").write_text(str(count)); os.utime("saved", ns=(count, count + 1))
if count < 3: os.kill(os.getpid(), 9)
send("done")
"""
    assert supervised.run(script).event == {"event": "done"}
    assert supervised.num_starts == 4


@pytest.mark.parametrize(("ending", "status"), [("os.kill(os.getpid(), 9)", -9), ("sys.exit(3)", 3)])
def test_training_killed_twice_at_one_save_is_not_started_again(supervised, ending, status):
    end = supervised.run(ending)
    assert end == TrainingEnd(None, None, status)
    assert supervised.num_starts == 2
    assert supervised.ends == [end, end]


def test_stopped_training_may_save_first(supervised):
    script = """
wanted = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: wanted.set())
send("progress"); wanted.wait(); Path("saved").write_text("x"); send("stopped"); sys.exit(75)
"""
    supervised.on_event = lambda _: setattr(supervised, "stop", Stop.CANCELLED)
    assert supervised.run(script) == TrainingEnd(None, Stop.CANCELLED, 75)
    assert (supervised.folder / "saved").exists()


def test_training_that_is_done_before_the_stop_is_done(supervised):
    script = """
wanted = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: wanted.set())
send("progress"); wanted.wait(); send("done")
"""
    supervised.on_event = lambda _: setattr(supervised, "stop", Stop.DRAINED)
    end = supervised.run(script)
    assert (end.event, end.stop) == ({"event": "done"}, Stop.DRAINED)


IGNORES_STOP = (
    'signal.signal(signal.SIGTERM, signal.SIG_IGN); send("progress", pid=os.getpid()); time.sleep(600)'
)


def test_training_that_ignores_the_stop_is_killed_after_its_grace(supervised):
    supervised.on_event = lambda _: setattr(supervised, "stop", Stop.DEADLINE)
    assert supervised.run(IGNORES_STOP, grace_s=1) == TrainingEnd(None, Stop.DEADLINE, -9)


def test_training_that_must_end_is_killed_at_once(supervised):
    def end(_: Any) -> None:
        supervised.stop, supervised.must_end = Stop.CLAIM, True

    supervised.on_event = end
    assert supervised.run(IGNORES_STOP, grace_s=600) == TrainingEnd(None, Stop.CLAIM, -9)


def test_an_earlier_stop_starts_nothing(supervised):
    supervised.stop = Stop.DRAINED
    assert supervised.run("") == TrainingEnd(None, Stop.DRAINED, 0)
    assert not (supervised.folder / "starts").exists()


def test_a_stop_is_obeyed_even_with_many_events(supervised):
    script = """
signal.signal(signal.SIGTERM, lambda *_: os._exit(75))
while True: send("progress")
"""
    supervised.on_event = lambda _: setattr(supervised, "stop", Stop.CANCELLED)
    assert supervised.run(script).stop == Stop.CANCELLED


def test_training_waits_for_a_locked_folder(supervised):
    script = """
if count < 1: send("error", code="RUN_LOCKED", message="m"); sys.exit(1)
send("done")
"""
    assert supervised.run(script, lock_wait_s=60).event == {"event": "done"}
    (supervised.folder / "starts").unlink()
    assert supervised.run(script).event["code"] == "RUN_LOCKED"


@pytest.mark.skipif(sys.platform != "linux", reason="there is no such file elsewhere")
def test_the_kernel_kills_training_first_if_memory_runs_out(supervised):
    def look(event: dict[str, Any]) -> None:
        seen.append(Path(f"/proc/{event['pid']}/oom_score_adj").read_text().strip())
        supervised.stop = Stop.CANCELLED

    seen: list[str] = []
    supervised.on_event = look
    script = """
signal.signal(signal.SIGTERM, lambda *_: os._exit(75))
send("progress", pid=os.getpid()); time.sleep(600)
"""
    supervised.run(script)
    assert seen == ["1000"]


@pytest.mark.parametrize("error", [BlockingIOError("fork refused"), RuntimeError("can't start new thread")])
def test_a_failure_to_start_a_process_is_raised(supervised, monkeypatch, error):
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("kronos_model.processes.children.subprocess.Popen", refuse)
    with pytest.raises(LocalStackError, match=str(error)):
        supervised.run("")


def test_processes_that_training_started_end_with_it(supervised):
    """A loader's process holds the pipes open, and would be waited for without end."""
    script = """
import subprocess
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
send("progress", pid=child.pid); send("done"); sys.stdout.flush(); os._exit(0)
"""
    assert supervised.run(script).event == {"event": "done"}
    assert await_end(supervised.events[0]["pid"])


def test_it_does_not_outlive_its_parent(tmp_path):
    """By the guard, for what does not even look at its standard input."""
    script = f"""
import os, signal, sys, threading
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from pathlib import Path
from tests.worker.training.test_child import IGNORES_STOP, Supervised
run = Supervised(Path({str(tmp_path)!r}))
def end(event):
    Path({str(tmp_path / "pid")!r}).write_text(str(event["pid"]))
    os.kill(os.getpid(), 9)
run.on_event = end
run.run(IGNORES_STOP, grace_s=600)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    assert await_end(int((tmp_path / "pid").read_text()), ORPHAN_GRACE_S + 5)
