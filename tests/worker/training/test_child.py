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
from worker.training.child import Stop, Training, TrainingEnd, training_command

PREAMBLE = """
import json, os, signal, sys, threading, time
from pathlib import Path
def tell(event, **content): print(json.dumps({"event": event, **content}), flush=True)
count = len(Path("starts").read_text()) if Path("starts").exists() else 0
Path("starts").write_text("x" * (count + 1))
"""


class Supervised:
    """Runs a script as training, and keeps what it told."""

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

    def hear(self, event: Any) -> None:
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
            on_end=self.ends.append,
        )
        return training.run(self.hear, lambda: self.stop, lambda: self.must_end)


@pytest.fixture
def supervised(tmp_path):
    return Supervised(tmp_path)


def test_what_is_told_is_heard_and_what_else_is_printed_is_not(supervised):
    script = """
print("plain words"); print("[1]"); print('{"no": "event"}'); print("words", file=sys.stderr)
tell("progress", step=1); tell("done", checkpoint="c"); sys.exit(0)
"""
    end = supervised.run(script)
    assert [event["event"] for event in supervised.events] == ["progress", "done"]
    assert end == TrainingEnd({"event": "done", "checkpoint": "c"}, None, 0)


def test_its_own_error_is_its_end(supervised):
    end = supervised.run('tell("error", code="DISK_FULL", message="m"); sys.exit(1)')
    assert (end.event["code"], end.exit_status) == ("DISK_FULL", 1)
    assert supervised.num_starts == 1


def test_killed_between_saves_it_is_started_again_until_it_is_done(supervised):
    script = """
Path("saved").write_text(str(count)); os.utime("saved", ns=(count, count + 1))
if count < 3: os.kill(os.getpid(), 9)
tell("done")
"""
    assert supervised.run(script).event == {"event": "done"}
    assert supervised.num_starts == 4


@pytest.mark.parametrize(("ending", "status"), [("os.kill(os.getpid(), 9)", -9), ("sys.exit(3)", 3)])
def test_killed_twice_at_one_save_it_is_not(supervised, ending, status):
    end = supervised.run(ending)
    assert end == TrainingEnd(None, None, status)
    assert supervised.num_starts == 2
    assert supervised.ends == [end, end]


def test_stopped_it_may_save_first(supervised):
    script = """
wanted = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: wanted.set())
tell("progress"); wanted.wait(); Path("saved").write_text("x"); tell("stopped"); sys.exit(75)
"""
    supervised.on_event = lambda _: setattr(supervised, "stop", Stop.CANCELLED)
    assert supervised.run(script) == TrainingEnd(None, Stop.CANCELLED, 75)
    assert (supervised.folder / "saved").exists()


def test_what_is_done_before_it_heeds_the_stop_is_done(supervised):
    script = """
wanted = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: wanted.set())
tell("progress"); wanted.wait(); tell("done")
"""
    supervised.on_event = lambda _: setattr(supervised, "stop", Stop.DRAINED)
    end = supervised.run(script)
    assert (end.event, end.stop) == ({"event": "done"}, Stop.DRAINED)


DEAF = 'signal.signal(signal.SIGTERM, signal.SIG_IGN); tell("progress", pid=os.getpid()); time.sleep(600)'


def test_what_does_not_heed_the_stop_is_killed_after_its_grace(supervised):
    supervised.on_event = lambda _: setattr(supervised, "stop", Stop.DEADLINE)
    assert supervised.run(DEAF, grace_s=1) == TrainingEnd(None, Stop.DEADLINE, -9)


def test_what_must_end_is_killed_within_its_grace(supervised):
    def end(_: Any) -> None:
        supervised.stop, supervised.must_end = Stop.CLAIM, True

    supervised.on_event = end
    assert supervised.run(DEAF, grace_s=600) == TrainingEnd(None, Stop.CLAIM, -9)


def test_a_stop_that_is_there_already_starts_nothing(supervised):
    supervised.stop = Stop.DRAINED
    assert supervised.run("") == TrainingEnd(None, Stop.DRAINED, 0)
    assert not (supervised.folder / "starts").exists()


def test_a_stop_is_heeded_however_much_is_told(supervised):
    script = """
signal.signal(signal.SIGTERM, lambda *_: os._exit(75))
while True: tell("progress")
"""
    supervised.on_event = lambda _: setattr(supervised, "stop", Stop.CANCELLED)
    assert supervised.run(script).stop == Stop.CANCELLED


def test_a_folder_that_another_process_holds_is_waited_for(supervised):
    script = """
if count < 1: tell("error", code="RUN_LOCKED", message="m"); sys.exit(1)
tell("done")
"""
    assert supervised.run(script, lock_wait_s=60).event == {"event": "done"}
    (supervised.folder / "starts").unlink()
    assert supervised.run(script).event["code"] == "RUN_LOCKED"


@pytest.mark.skipif(sys.platform != "linux", reason="there is no such file elsewhere")
def test_where_memory_runs_out_training_is_ended_first(supervised):
    def look(event: dict[str, Any]) -> None:
        seen.append(Path(f"/proc/{event['pid']}/oom_score_adj").read_text().strip())
        supervised.stop = Stop.CANCELLED

    seen: list[str] = []
    supervised.on_event = look
    script = """
signal.signal(signal.SIGTERM, lambda *_: os._exit(75))
tell("progress", pid=os.getpid()); time.sleep(600)
"""
    supervised.run(script)
    assert seen == ["1000"]


@pytest.mark.parametrize("error", [BlockingIOError("fork refused"), RuntimeError("can't start new thread")])
def test_a_machine_that_starts_no_process_is_told_of_as_such(supervised, monkeypatch, error):
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("kronos_model.processes.json_child.ChildProcess.__init__", refuse)
    with pytest.raises(LocalStackError, match=str(error)):
        supervised.run("")


def test_what_it_started_ends_with_it(supervised):
    """A loader's process holds the pipes open, and would be waited for without end."""
    script = """
import subprocess
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
tell("progress", pid=child.pid); tell("done"); sys.stdout.flush(); os._exit(0)
"""
    assert supervised.run(script).event == {"event": "done"}
    assert await_end(supervised.events[0]["pid"])


def test_it_does_not_outlive_its_parent(tmp_path):
    """By the guard, for what does not even look at its standard input."""
    script = f"""
import os, signal, sys, threading
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from pathlib import Path
from tests.worker.training.test_child import DEAF, Supervised
run = Supervised(Path({str(tmp_path)!r}))
def end(event):
    Path({str(tmp_path / "pid")!r}).write_text(str(event["pid"]))
    os.kill(os.getpid(), 9)
run.on_event = end
run.run(DEAF, grace_s=600)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    assert await_end(int((tmp_path / "pid").read_text()), ORPHAN_GRACE_S + 5)


def test_the_real_command_is_one_process_that_hears_its_parent():
    command = training_command("c.json", "run", "cuda:0")
    assert command[1:4] == ["-P", "-m", "kronos_model.finetuning"]
    assert {"--supervised", "json", "cuda:0"} <= set(command)
