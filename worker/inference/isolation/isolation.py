"""Where a worker has its suspects computed: one at a time, in a child that is there while it is needed."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.redis.job_store import Receipt
from worker.inference.executor import Overseer
from worker.inference.isolation.child import Event, QuarantineChild
from worker.inference.isolation.oom import num_oom_kills

log = logging.getLogger(__name__)

IDLE_S: Final = 30.0
LOOK_INTERVAL_S: Final = 1.0
POLL_S: Final = 0.2
SETTLE_S: Final = 0.5
"""What kills a worker with all its processes may come to the child first: then nobody is here to count it."""
MIN_BUSY_DELAY_S: Final = 1.0
MAX_BUSY_DELAY_S: Final = 30.0
PLACES_SHARE: Final = 4
"""One in so many of the jobs that a worker holds at most may be a suspect; the others go on meanwhile."""
KILLED: Final = -9


class NotNow(Exception):
    """Nothing was computed, and nothing is wrong with the job: it is for another time, or another worker."""

    def __init__(self, reason: str, delay_s: float = 0.0) -> None:
        super().__init__(reason)
        self.delay_s = delay_s


class Unavailable(Exception):
    """The child cannot load what it needs, or somebody killed it; ``error`` says why."""

    def __init__(self, error: JobError) -> None:
        super().__init__(str(error))
        self.error = error


class ChildDied(Exception):
    """The child ended while it computed a job; ``exit_status`` is negative for a signal's number."""

    def __init__(self, exit_status: int) -> None:
        super().__init__(f"the quarantine ended with status {exit_status}")
        self.exit_status = exit_status


class Quarantine:
    """Computes suspects. All methods may be called from any thread.

    Args:
        max_jobs: that the worker holds.
        hello: what the child must know of the worker, as ``host.py`` reads it.
        is_draining: whether the worker shuts down: then no further suspect is begun.
        start: starts a child.
    """

    def __init__(
        self,
        max_jobs: int,
        hello: Callable[[], Mapping[str, Any]],
        is_draining: Callable[[], bool],
        start: Callable[[], QuarantineChild] = QuarantineChild,
        idle_s: float = IDLE_S,
    ) -> None:
        self._num_places = max(1, max_jobs // PLACES_SHARE)
        self._places = threading.BoundedSemaphore(self._num_places)
        self._last_s = 0.0
        self._turn = threading.Lock()
        self._hello = hello
        self._is_draining = is_draining
        self._start = start
        self._idle_s = idle_s
        self._is_stopped = False
        self._child: QuarantineChild | None = None
        self._idle_timer: threading.Timer | None = None

    @contextmanager
    def place(self) -> Iterator[None]:
        """Room for one suspect that waits or is computed.

        Raises NotNow where all is taken, for as long as those take if each takes as long as the last one did.
        """
        if not self._places.acquire(blocking=False):
            delay_s = min(MAX_BUSY_DELAY_S, max(MIN_BUSY_DELAY_S, self._num_places * self._last_s))
            raise NotNow("other suspects are computed first", delay_s)
        try:
            yield
        finally:
            self._places.release()

    def compute(
        self, job_id: str, payload: Any, receipt: Receipt, queue: str, overseer: Overseer
    ) -> dict[str, Any]:
        """The job's result as JSON, just as the worker itself would give it.

        Raises:
            JobError: the job's own.
            ChildDied: while it computed nothing but this job, which may be why.
            NotNow, Unavailable: nothing was computed, or nothing is proved.
        """
        began = time.monotonic()
        with self._own_turn(overseer):
            child = self._ready_child(overseer)
            known = asdict(receipt.after(time.monotonic() - began))
            num_before = num_oom_kills()
            child.tell({"job_id": job_id, "payload": payload, "receipt": known, "queue": queue})
            try:
                answer = self._answer(child, overseer)
            except ChildDied as died:
                if died.exit_status == KILLED and num_before is not None and num_oom_kills() == num_before:
                    raise Unavailable(_killed()) from None
                raise
        if answer["event"] == "error":
            raise JobError(*answer["error"])
        return dict(answer["result"])

    def stop(self) -> None:
        """End the child. What it computes is not counted against its job."""
        self._is_stopped = True
        child = self._child
        if child is not None:
            child.end()

    @contextmanager
    def _own_turn(self, overseer: Overseer) -> Iterator[None]:
        """Whatever goes wrong within, the child is ended: it would be busy with what nobody waits for."""
        while not self._turn.acquire(timeout=LOOK_INTERVAL_S):
            self._begin_none_at_the_end()
            _look(overseer)
        try:
            self._begin_none_at_the_end()
            if self._idle_timer is not None:
                self._idle_timer.cancel()
            began = time.monotonic()
            yield
            self._last_s = time.monotonic() - began
        except BaseException:
            self._end_child()
            raise
        finally:
            self._idle_timer = threading.Timer(self._idle_s, self._end_idle_child)
            self._idle_timer.daemon = True
            self._idle_timer.start()
            self._turn.release()

    def _begin_none_at_the_end(self) -> None:
        if self._is_stopped or self._is_draining():
            raise NotNow("the worker shuts down")

    def _ready_child(self, overseer: Overseer) -> QuarantineChild:
        """The one that is there, else a new one, once it has loaded."""
        if self._child is not None and self._child.exit_status is None:
            return self._child
        self._end_child()
        log.info("quarantine: starting a process for jobs whose attempts ended with their processes")
        try:
            self._child = child = self._start()
        except (OSError, RuntimeError) as error:  # of its guard too, and of the threads that read it
            reason = f"no process could be started for the job: {error}"
            raise Unavailable(JobError(ErrorCode.INTERNAL, reason)) from None
        child.tell(self._hello())
        while True:
            try:
                event = self._next_event(child, overseer)
            except ChildDied as died:
                raise Unavailable(_died_loading(died.exit_status)) from None
            if event["event"] == "ready":
                return child
            if event["event"] == "unavailable":
                raise Unavailable(JobError(*event["error"]))

    def _answer(self, child: QuarantineChild, overseer: Overseer) -> Event:
        while True:
            event = self._next_event(child, overseer)
            if event["event"] == "progress":
                overseer.tell(event["bars_done"], event["bars_total"])
            elif event["event"] in ("result", "error"):
                return event

    def _next_event(self, child: QuarantineChild, overseer: Overseer) -> Event:
        looked_at = time.monotonic()
        while True:
            is_over = child.has_told_all  # before the last look at what it told
            if (event := child.next_event(0 if is_over else POLL_S)) is not None:
                return event
            if is_over:
                time.sleep(SETTLE_S)
                if self._is_stopped:
                    raise NotNow("the worker shuts down")
                assert child.exit_status is not None
                raise ChildDied(child.exit_status)
            if time.monotonic() - looked_at > LOOK_INTERVAL_S:
                looked_at = time.monotonic()
                _look(overseer)

    def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end()

    def _end_idle_child(self) -> None:
        if self._turn.acquire(blocking=False):  # else it is in use again
            try:
                self._end_child()
            finally:
                self._turn.release()


def _look(overseer: Overseer) -> None:
    if overseer.is_cancelled():
        raise JobError(ErrorCode.CANCELLED, "the job was cancelled, as asked")


def _killed() -> JobError:
    """Not by the kernel for want of memory, and no job kills its own process so."""
    return JobError(
        ErrorCode.WORKER_LOST,
        "somebody killed each process that the job was computed in alone (SIGKILL): see who does that, then "
        "submit it again under a new id",
        None,
        {"exit_status": KILLED},
    )


def _died_loading(exit_status: int) -> JobError:
    if exit_status == KILLED:
        return JobError(
            ErrorCode.OUT_OF_MEMORY,
            "the process that this job is to be computed in was killed while it loaded, most likely for lack "
            "of memory: give the worker more memory",
        )
    return JobError(
        ErrorCode.INTERNAL,
        f"the process that this job is to be computed in ended with status {exit_status}; see the worker's "
        "log",
    )
