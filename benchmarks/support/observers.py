"""What runs in a process: which of our functions on which threads, or the CPU time of each stage of a job.

``serve`` lets another process start and stop an observer over a socket.
"""

import gc
import importlib
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from multiprocessing.connection import Client, Listener
from types import CodeType, FrameType
from typing import Any, Final, Protocol

from kronos_model.processes.children import PACKAGE_ROOT

PACKAGES: Final = tuple(f"{name}{os.sep}" for name in ("kronos_client", "worker", "kronos_model"))


class Observer(Protocol):
    def start(self) -> None:
        """Forget everything, and observe."""

    def stop(self) -> Any:
        """What was observed since, as JSON has it."""


class CallRecorder:
    """The functions of ``PACKAGES`` that run, by thread. Sees threads that start after it was made.

    Functions are code objects: lambdas, comprehensions and generator expressions count too.
    """

    def __init__(self) -> None:
        self._seen: dict[str, set[CodeType]] | None = None
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def start(self) -> None:
        self._seen = {}

    def stop(self) -> dict[str, list[str]]:
        """For each thread's name ``file:line`` of each function."""
        seen, self._seen = self._seen or {}, None
        return {thread: sorted({*filter(None, map(_shown, codes))}) for thread, codes in list(seen.items())}

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        seen = self._seen
        if seen is not None and event == "call":
            seen.setdefault(threading.current_thread().name, set()).add(frame.f_code)


def _shown(code: CodeType) -> str:
    path = code.co_filename.removeprefix(f"{PACKAGE_ROOT}{os.sep}")
    return f"{path}:{code.co_firstlineno}:{code.co_qualname}" if path.startswith(PACKAGES) else ""


class StageClock:
    """CPU seconds of stages, each given by its functions as ``module:Class.method``.

    A stage that runs inside another one, on the same thread, counts for itself only.
    """

    def __init__(self, stages: Mapping[str, Iterable[str]]) -> None:
        self._stages = [*stages]
        self._spent_ns: Counter[str] = Counter()
        self._local = threading.local()
        for stage, names in stages.items():
            for name in names:
                self._replace(name, stage)

    def start(self) -> None:
        self._spent_ns.clear()

    def stop(self) -> dict[str, float]:
        return {stage: self._spent_ns[stage] / 1e9 for stage in self._stages}

    def _replace(self, name: str, stage: str) -> None:
        module, _, path = name.partition(":")
        *owners, own = path.split(".")
        owner: Any = importlib.import_module(module)
        for attribute in owners:
            owner = getattr(owner, attribute)
        function = getattr(owner, own)
        timed = self._timed(function, stage)
        setattr(owner, own, timed)
        for other in gc.get_referrers(function) if not owners else ():  # modules that have imported it
            if isinstance(other, dict) and other.get(own) is function:
                other[own] = timed

    def _timed(self, function: Callable[..., Any], stage: str) -> Callable[..., Any]:
        local = self._local

        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            outer = getattr(local, "stage", None)
            self._switch(outer, stage)
            try:
                return function(*args, **kwargs)
            finally:
                self._switch(stage, outer)

        return timed

    def _switch(self, ended: str | None, begun: str | None) -> None:
        now = time.thread_time_ns()
        if ended is not None:
            self._spent_ns[ended] += now - self._local.since
        self._local.stage, self._local.since = begun, now


def serve(observer: Observer, address: str) -> None:
    """Answer requests of ``ask``, on a thread of its own."""
    threading.Thread(target=_serve, args=(observer, address), name="observer", daemon=True).start()


def _serve(observer: Observer, address: str) -> None:
    with Listener(address) as listener:
        while True:
            with listener.accept() as peer:
                answer = observer.start() if peer.recv_bytes() == b"start" else observer.stop()
                peer.send_bytes(json.dumps(answer).encode())


def ask(address: str, what: str) -> Any:
    """``start`` or ``stop`` the observer of another process; returns what it observed."""
    with Client(address) as peer:
        peer.send_bytes(what.encode())
        return json.loads(peer.recv_bytes())
