"""Child processes: their lines, the order of their ends, and no orphans."""

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from kronos_cli.stack.processes import ProcessStack
from kronos_model.processes.children import ChildProcess, LocalStackError
from tests.processes import await_end
from tests.waiting import WAIT_S

ROOT = Path(__file__).resolve().parents[3]
SLEEPER = [sys.executable, "-c", "print('up', flush=True); import time; time.sleep(60)"]
POLITE = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("bye", flush=True), sys.exit(0)))
print("up", flush=True)
time.sleep(60)
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(60)
"""
# A stack of two children; the second ignores SIGTERM. It prints their process ids, then its progress.
STACK = f"""
import sys, threading
from kronos_cli.stack.processes import ProcessStack
second_is_up = threading.Event()
def sink(name, line):
    if name == "second":
        second_is_up.set()
with ProcessStack(sink) as stack:
    first = stack.start("first", {SLEEPER!r})
    second = stack.start("second", [sys.executable, "-c", {STUBBORN!r}], grace_s=GRACE_S)
    second_is_up.wait()
    try:
        print(first.pid, second.pid, flush=True)
        stack.wait()
    except KeyboardInterrupt:
        print("ending", flush=True)
print("ended", flush=True)
"""


def start_stack(grace_s: int) -> "tuple[subprocess.Popen[str], list[int]]":
    """A process that runs STACK, and the process ids of its two children."""
    script = STACK.replace("GRACE_S", str(grace_s))
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, [int(pid) for pid in process.stdout.readline().split()]


class Lines:
    """A sink that can be waited on."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []
        self._changed = threading.Condition()

    def __call__(self, name: str, line: str) -> None:
        with self._changed:
            self.seen.append((name, line))
            self._changed.notify_all()

    def await_line(self, name: str, line: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: (name, line) in self.seen, timeout=WAIT_S), self.seen


def test_lines_carry_the_name_of_their_process() -> None:
    lines = Lines()
    with ProcessStack(lines) as stack:
        for name in ("one", "two"):
            stack.start(name, ["echo", f"from {name}"])
            lines.await_line(name, f"from {name}")
    assert lines.seen == [("one", "from one"), ("two", "from two")]


def test_a_child_that_dies_is_noticed_with_its_last_lines() -> None:
    with ProcessStack() as stack:
        stack.start("well", SLEEPER)
        stack.start("ill", [sys.executable, "-c", "print('why'); raise SystemExit(3)"])
        dead = stack.wait()
        assert (dead.name, dead.exit_status, dead.tail()) == ("ill", 3, ["why"])


def test_a_child_that_ignores_sigterm_is_killed_after_its_grace() -> None:
    lines = Lines()
    child = ChildProcess("stubborn", [sys.executable, "-c", STUBBORN], sink=lines, grace_s=1)
    lines.await_line("stubborn", "up")
    started = time.monotonic()
    assert child.stop() == -signal.SIGKILL
    assert time.monotonic() - started > 0.9


def test_all_receive_sigterm_at_once_but_what_they_need_ends_last() -> None:
    lines = Lines()
    with ProcessStack(lines) as stack:
        server = ChildProcess("server", SLEEPER, sink=lines)
        stack.adopt(server, lambda: server)
        stubborn = stack.start("stubborn", [sys.executable, "-c", STUBBORN], grace_s=60)
        stack.start("polite", [sys.executable, "-c", POLITE])
        for name in ("server", "polite", "stubborn"):
            lines.await_line(name, "up")
        stopping = threading.Thread(target=stack.stop)
        stopping.start()
        lines.await_line("polite", "bye")
        assert (stubborn.exit_status, server.exit_status) == (None, None)
        stubborn.kill()
        stopping.join(WAIT_S)
        assert server.exit_status is not None


def test_stopping_a_child_ends_its_own_children() -> None:
    lines = Lines()
    with ProcessStack(lines) as stack:
        stack.start("shell", ["sh", "-c", "sleep 60 & echo $!; echo up; wait"])
        lines.await_line("shell", "up")
    grandchild = int(next(line for _, line in lines.seen if line.isdigit()))
    assert await_end(grandchild)


def test_secrets_are_passed_on_standard_input() -> None:
    lines = Lines()
    child = ChildProcess("reader", ["cat"], stdin="hidden\n", sink=lines)
    lines.await_line("reader", "hidden")
    child.stop()


def test_a_missing_command_is_an_error() -> None:
    with ProcessStack() as stack, pytest.raises(LocalStackError, match="nothing cannot be started"):
        stack.start("nothing", ["/no/such/program"])


def test_no_child_stays_if_a_thread_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def noted(*args: Any, **kwargs: Any) -> Any:
        started.append(popen(*args, **kwargs))
        return started[-1]

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(subprocess, "Popen", noted)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(LocalStackError, match="sleeper cannot be started: can't start new thread"):
        ChildProcess("sleeper", SLEEPER)
    assert [process.returncode for process in started] == [-signal.SIGKILL, -signal.SIGKILL]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_ends_at_once(number: int) -> None:
    process, pids = start_stack(grace_s=600)
    assert process.stdout is not None
    process.send_signal(number)
    assert process.stdout.readline() == "ending\n"
    time.sleep(0.3)
    assert process.poll() is None  # it waits for the stubborn one
    process.send_signal(number)
    assert process.communicate(timeout=WAIT_S)[0] == "ended\n"
    assert process.returncode == 0
    assert all(await_end(pid) for pid in pids)


def test_no_orphan_survives_a_killed_parent() -> None:
    process, pids = start_stack(grace_s=1)
    process.kill()
    process.wait()
    assert all(await_end(pid) for pid in pids)


def test_a_restarted_child_is_watched_and_stopped_like_the_first() -> None:
    lines = Lines()

    def start_server() -> ChildProcess:
        return ChildProcess("server", [sys.executable, "-c", POLITE], sink=lines)

    with ProcessStack(lines) as stack:
        stack.adopt(start_server(), start_server)
        stack.start("worker", [sys.executable, "-c", POLITE])
        for first in stack.children:
            lines.await_line(first.name, "up")
        lines.seen.clear()
        for first in stack.children:
            first.kill()
            assert stack.wait() is first
            second = stack.restart(first)
            lines.await_line(first.name, "up")
            assert (second.pid != first.pid, stack.dead()) == (True, None)
    assert [name for name, line in lines.seen if line == "bye"] == ["worker", "server"]


EXITING = """
import atexit, gc
atexit.register(lambda: print(gc.get_freeze_count() > 0, flush=True))  # runs last
from kronos_model.processes.children import collect_nothing_at_exit
collect_nothing_at_exit()
atexit.register(lambda: print(gc.get_freeze_count() > 0, flush=True))
"""


def test_the_exit_of_a_process_skips_garbage_collection() -> None:
    done = subprocess.run([sys.executable, "-c", EXITING], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
