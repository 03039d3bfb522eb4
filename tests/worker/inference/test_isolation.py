"""Suspects in a scripted child: one at a time, and which end counts against which job."""

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.results import ForecastProgress
from kronos_client.redis.job_store import Receipt
from kronos_model.processes.children import LocalStackError
from kronos_model.processes.json_child import ChildEnded, JsonChild
from tests.waiting import WAIT_S
from worker.inference import isolation as module
from worker.inference.isolation import ChildUnavailable, Isolation, num_oom_kills
from worker.process import RetryLater

FAKE = Path(__file__).parent / "fake_isolation_child.py"
RECEIPT = Receipt(now=1000.0, received_at=990.0, is_cancelled=False, lost=2)


class JobContext:
    """A ``JobContext``."""

    def __init__(self) -> None:
        self.wants_no_more = threading.Event()
        self.waits = threading.Event()
        self.progress = threading.Event()

    def is_cancelled(self) -> bool:
        self.waits.set()
        return self.wants_no_more.is_set()

    def report_progress(self, progress: ForecastProgress) -> None:
        assert (progress.bars_done, progress.bars_total) == (1, 2)
        self.progress.set()


class Parent:
    """A worker with an isolation."""

    def __init__(self, max_jobs: int) -> None:
        self.load = "well"
        self.engines: dict[str, str] = {}
        self.is_draining = False
        self.may_start = True
        self.children: list[JsonChild] = []
        self.isolation = Isolation(
            max_jobs,
            lambda: {"load": self.load, "engines": dict(self.engines)},
            lambda: self.is_draining,
            self._start,
        )

    def _start(self) -> JsonChild:
        if not self.may_start:
            raise LocalStackError("no more processes")
        self.children.append(JsonChild("isolation", [sys.executable, str(FAKE)], env=os.environ))
        return self.children[-1]

    def compute(self, do: str, context: JobContext | None = None) -> dict[str, Any]:
        return self.isolation.compute("job", {"do": do}, RECEIPT, "cpu", context or JobContext())

    def begin(self, do: str, context: JobContext) -> tuple[threading.Thread, list[Any]]:
        """Compute on a thread; the returned list then holds the outcome."""
        ends: list[Any] = []

        def run() -> None:
            try:
                ends.append(self.compute(do, context))
            except Exception as error:  # noqa: BLE001  the test looks at it
                ends.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread, ends


@pytest.fixture
def make_parent(monkeypatch):
    monkeypatch.setattr(module, "CHECK_INTERVAL_S", 0.02)
    monkeypatch.setattr(module, "SETTLE_S", 0.01)
    parents: list[Parent] = []

    def make(max_jobs: int = 64) -> Parent:
        parents.append(Parent(max_jobs))
        return parents[-1]

    yield make
    for parent in parents:
        parent.isolation.stop()
        assert all(child.exit_status is not None for child in parent.children)


@pytest.fixture
def parent(make_parent) -> Parent:
    return make_parent()


def test_one_child_computes_several_jobs_in_turn(parent):
    first, second = parent.compute("well"), parent.compute("well")
    assert first["pid"] == second["pid"] == parent.children[0].pid
    sent = first["job"]
    assert (sent["job_id"], sent["queue"], sent["job"]) == ("job", "cpu", {"do": "well"})
    assert Receipt(**sent["receipt"]).lost == 2
    assert 1000.0 <= sent["receipt"]["now"] < 1000.0 + WAIT_S  # as of when it began there


def test_a_child_that_was_told_something_else_is_replaced(parent):
    """Such as before the worker chose the engine of another model."""
    first = parent.compute("well")
    parent.engines["another model"] = "torch"
    second = parent.compute("well")
    assert second["pid"] == parent.compute("well")["pid"] != first["pid"]
    assert parent.children[0].exit_status is not None


def test_a_jobs_own_error_does_not_end_the_child(parent):
    with pytest.raises(JobError) as ended:
        parent.compute("fail")
    assert ended.value.args == ("NOT_FINITE", "row 3 holds NaN", "series.0.close", {"row": 3})
    parent.compute("well")
    assert len(parent.children) == 1


@pytest.mark.parametrize(("do", "exit_status"), [("SIGSEGV", -11), ("exit", 70)])
def test_a_dead_child_is_reported_with_its_status_and_replaced(parent, do, exit_status):
    with pytest.raises(ChildEnded) as died:
        parent.compute(do)
    assert died.value.exit_status == exit_status
    assert parent.compute("well")["pid"] == parent.children[1].pid


@pytest.mark.parametrize(("before", "after", "is_proof"), [(3, 3, False), (3, 4, True), (None, None, True)])
def test_a_kill_is_proof_only_if_memory_ran_out_or_this_is_unknown(
    parent, monkeypatch, before, after, is_proof
):
    counts = iter([before, after])
    monkeypatch.setattr(module, "num_oom_kills", lambda: next(counts))
    with pytest.raises(ChildEnded if is_proof else ChildUnavailable) as died:
        parent.compute("SIGKILL")
    if not is_proof:
        assert died.value.error.code == ErrorCode.WORKER_LOST
    monkeypatch.setattr(module, "num_oom_kills", lambda: 0)
    assert parent.compute("well")["pid"] == parent.children[1].pid


def test_a_child_that_died_while_idle_counts_against_no_job(parent):
    parent.compute("well")
    parent.children[0].kill()
    while parent.children[0].exit_status is None:
        time.sleep(0.01)
    assert parent.compute("well")["pid"] == parent.children[1].pid


@pytest.mark.parametrize(
    ("load", "code"), [("badly", ErrorCode.CHECKPOINT_MISSING), ("kill", ErrorCode.OUT_OF_MEMORY)]
)
def test_a_child_that_cannot_load_proves_nothing_and_is_tried_again(parent, load, code):
    parent.load = load
    with pytest.raises(ChildUnavailable) as unavailable:
        parent.compute("well")
    assert unavailable.value.error.code == code
    parent.load = "well"
    parent.compute("well")


def test_a_cancelled_suspect_is_killed_and_counts_as_cancelled(parent):
    context = JobContext()
    thread, ends = parent.begin("hang", context)
    assert context.progress.wait(WAIT_S)
    context.wants_no_more.set()
    thread.join(WAIT_S)
    assert ends[0].code == ErrorCode.CANCELLED
    assert parent.children[0].exit_status is not None
    parent.compute("well")


def test_a_waiting_suspect_can_be_cancelled_and_one_too_many_goes_back(make_parent):
    parent = make_parent(max_jobs=8)  # two places
    first, second = JobContext(), JobContext()
    hanging, _ = parent.begin("hang", first)
    assert first.progress.wait(WAIT_S)
    waiting, ends = parent.begin("well", second)
    assert second.waits.wait(WAIT_S)
    with pytest.raises(RetryLater) as refused:
        parent.compute("well")
    assert refused.value.delay_s > 0
    second.wants_no_more.set()
    waiting.join(WAIT_S)
    assert ends[0].code == ErrorCode.CANCELLED
    assert not first.wants_no_more.is_set()
    assert parent.children[0].exit_status is None
    first.wants_no_more.set()
    hanging.join(WAIT_S)


def test_a_worker_that_shuts_down_begins_no_suspect(parent):
    parent.is_draining = True
    with pytest.raises(RetryLater):
        parent.compute("well")
    assert parent.children == []


def test_a_waiting_suspect_goes_back_when_the_worker_shuts_down(parent):
    computed, waiting = JobContext(), JobContext()
    first, _ = parent.begin("hang", computed)
    assert computed.progress.wait(WAIT_S)
    second, ends = parent.begin("well", waiting)
    parent.is_draining = True
    second.join(WAIT_S)
    assert isinstance(ends[0], RetryLater)
    assert parent.children[0].exit_status is None
    computed.wants_no_more.set()
    first.join(WAIT_S)


def test_if_no_process_can_be_started_nothing_is_proved(parent):
    parent.may_start = False
    with pytest.raises(ChildUnavailable, match="no more processes"):
        parent.compute("well")


def test_a_worker_that_stops_ends_its_child_and_counts_nothing(parent):
    context = JobContext()
    thread, ends = parent.begin("hang", context)
    assert context.progress.wait(WAIT_S)
    parent.isolation.stop()
    thread.join(WAIT_S)
    assert isinstance(ends[0], RetryLater)


def test_a_child_that_ended_because_it_was_idle_proves_nothing(parent):
    with pytest.raises(RetryLater):
        parent.compute("idle")
    assert parent.compute("well")["pid"] == parent.children[1].pid


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only: run it on Linux")
def test_the_kernel_kills_the_child_first_if_memory_runs_out(parent):
    parent.compute("well")
    assert Path(f"/proc/{parent.children[0].pid}/oom_score_adj").read_text() == "1000\n"
    assert parent.children[0].pid != os.getpid()


@pytest.mark.parametrize(
    ("text", "count"), [("pgfault 9\noom_kill 3\noom_kill_other 5\n", 3), ("pgfault 9\n", None), ("", None)]
)
def test_the_kernels_count_is_read_or_none_if_it_is_missing(tmp_path: Path, text: str, count: int | None):
    vmstat = tmp_path / "vmstat"
    vmstat.write_text(text)
    assert num_oom_kills(vmstat) == count


def test_without_the_file_there_is_no_count(tmp_path: Path):
    assert num_oom_kills(tmp_path / "vmstat") is None
