"""Both ends of a pipe that carries JSON."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kronos_model.processes.json_child import ORPHAN_GRACE_S, ChildEnded, JsonChild
from tests.processes import await_end

ROOT = Path(__file__).resolve().parents[3]
WAIT_S = 30
ECHO = """
import os, sys
from kronos_model.processes.json_child import JsonParent
parent = JsonParent()
print("printed by a library")
while "end" not in (message := parent.next_message()):
    parent.send("echo", message=message, pid=os.getpid())
"""


@pytest.fixture
def start() -> Iterator[Callable[..., JsonChild]]:
    children: list[JsonChild] = []

    def start(script: str, **given: object) -> JsonChild:
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        children.append(JsonChild("test", [sys.executable, "-c", script], env=environment, **given))
        return children[-1]

    yield start
    for child in children:
        child.end()


def test_messages_events_and_text_are_separate(start):
    lines: list[tuple[str, str]] = []
    child = start(ECHO, error_sink=lambda *line: lines.append(line))
    messages: list[dict[str, object]] = [{"long": "x" * 2**20}, {"text": "grün\n"}, {"number": 3}]
    for message in messages:
        child.send(message)
    assert [child.next_event(WAIT_S)["message"] for _ in messages] == messages
    assert lines == [("test", "printed by a library")]
    child.send({"end": True})
    with pytest.raises(ChildEnded) as ended:
        child.next_event(WAIT_S)
    assert ended.value.exit_status == 0


def test_waiting_for_a_silent_child_ends_in_time(start):
    assert start("import time; time.sleep(600)").next_event(0.01) is None


@pytest.mark.parametrize(("ending", "status"), [("os.kill(os.getpid(), 11)", -11), ("sys.exit(3)", 3)])
def test_how_a_child_ended_is_reported_after_its_last_event(start, ending, status):
    child = start(f'import os, sys; print(\'{{"event": "last"}}\', flush=True); {ending}')
    assert child.next_event(WAIT_S) == {"event": "last"}
    with pytest.raises(ChildEnded, match=str(abs(status))) as ended:
        child.next_event(WAIT_S)
    assert ended.value.exit_status == status


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_child_that_prints_an_endless_line_is_killed(start, stream):
    child = start(f"import sys\nwhile True: sys.{stream}.write('x' * 4096)", max_line_chars=2**16)
    with pytest.raises(ChildEnded) as ended:
        child.next_event(WAIT_S)
    assert ended.value.exit_status == -9
    assert sum(map(len, child.tail())) < 2**16


def test_it_ends_with_its_parent_even_while_it_computes():
    script = f"""
import os, sys
from kronos_model.processes.json_child import JsonChild
child = JsonChild("test", [sys.executable, "-c", {ECHO!r}], env=os.environ)
child.send({{}})
print(child.next_event({WAIT_S})["pid"], flush=True)
os.kill(os.getpid(), 9)
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    assert await_end(int(done.stdout), ORPHAN_GRACE_S + WAIT_S)


def test_a_child_that_reads_nothing_does_not_block_the_sender(start):
    child = start("import time; time.sleep(600)")
    child.send({"large": "x" * 2**22})


def test_a_child_may_wait_with_a_limit(start):
    child = start(
        """
from kronos_model.processes.json_child import JsonParent
try:
    JsonParent().next_message(0.05)
except TimeoutError:
    raise SystemExit(90)
"""
    )
    with pytest.raises(ChildEnded) as ended:
        child.next_event(WAIT_S)
    assert ended.value.exit_status == 90


def test_a_child_that_ended_is_not_waited_for_while_its_own_child_holds_its_pipes(start):
    child = start(
        """
import os, subprocess, sys
process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print('{"event": "last", "pid": %d}' % process.pid, flush=True)
os._exit(0)
"""
    )
    pid = child.next_event(WAIT_S)["pid"]
    with pytest.raises(ChildEnded):
        child.next_event(WAIT_S)
    child.stop()
    assert await_end(pid)
