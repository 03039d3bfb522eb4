"""Starts workers as forks of a process that has imported torch and Celery.

These imports take most of a worker's start, and the suite starts over a hundred workers. Before the fork only
packages of others are imported. Settings, our own modules, signals and exit are those of a new process.

    python -m tests.fork_server      reads a request a line, and answers each with the new process's id
"""

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
IMPORTED: Final = (
    "celery.apps.worker", "celery.backends.redis", "celery.bin.celery", "celery.concurrency.prefork",
    "celery.concurrency.solo", "celery.concurrency.thread", "celery.worker.consumer", "einops",
    "flower.command", "huggingface_hub.hf_api", "huggingface_hub.hub_mixin", "kombu.transport.redis",
    "numpy.typing", "prometheus_client", "pydantic_settings", "pythonjsonlogger.json", "safetensors.torch",
    "torch", "yaml",
)  # fmt: skip
READ_EARLY: Final = ("COVERAGE", "LD_", "MALLOC_", "OMP_", "PYTHON")
"""Variables that Python and libraries read at their start, and a fork would not."""


class ForkedProcess:
    """A worker's process, with the part of ``subprocess.Popen`` that tests use."""

    def __init__(self, pid: int, status: Path) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        if self.returncode is None:
            with suppress(FileNotFoundError):
                self.returncode = int(self._status.read_text())
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        began = time.monotonic()
        while (status := self.poll()) is None:
            if timeout is not None and time.monotonic() - began > timeout:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.01)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def can_fork(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether a fork does what a new process does. Otherwise the test starts one."""
    early = (
        {name: value for name, value in variables.items() if name.startswith(READ_EARLY)}
        for variables in (environment, os.environ)
    )
    return (
        sys.platform == "linux"
        and command[0] in ("celery", "kronos_cli")
        and next(early) == next(early)
        and not any(name.startswith("COVERAGE") for name in environment)
    )


@functools.cache
def _server() -> "subprocess.Popen[bytes]":
    """This process's server, which ends with it."""
    command = [sys.executable, "-m", __name__]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)


def start(command: Sequence[str], environment: Mapping[str, str], log: Path) -> ForkedProcess:
    """Start ``python -m COMMAND`` in the checkout, with both outputs in ``log``."""
    status = log.with_suffix(".status")
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps([list(command), dict(environment), str(log), str(status)]).encode() + b"\n")
    return ForkedProcess(int(server.stdout.readline()), status)


def serve() -> None:
    """Fork for each request. Returns in the new processes, and at the end of the input."""
    with open(0, "rb", closefd=False) as requests:
        for line in requests:
            command, environment, log, status = json.loads(line)
            receiver, sender = os.pipe()
            if (keeper := os.fork()) == 0:
                _keep(command, environment, log, Path(status), sender)
                return
            os.close(sender)
            os.write(1, os.read(receiver, 20) + b"\n")
            os.close(receiver)
            _keepers.append(keeper)
            _reap()
    os._exit(0)


_keepers: list[int] = []


def _reap() -> None:
    """Collect the keepers whose process has ended."""
    for keeper in list(_keepers):
        if os.waitpid(keeper, os.WNOHANG)[0]:
            _keepers.remove(keeper)


def _keep(command: list[str], environment: dict[str, str], log: str, status: Path, sender: int) -> None:
    """Fork once more. The child returns; its parent writes the child's exit status to a file."""
    child = os.fork()
    if child == 0:
        _become(command, environment, log, sender)
        return
    os.write(sender, str(child).encode())
    os.closerange(0, 3)
    os.close(sender)
    exit_status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    partial = status.with_suffix(".partial")
    partial.write_text(str(exit_status))
    partial.rename(status)
    os._exit(0)


def _become(command: list[str], environment: dict[str, str], log: str, sender: int) -> None:
    """Take the environment and files of a new process, in a session by which a test finds its descendants."""
    os.close(sender)
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.closerange(3, 64)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = command


def _exit(status: int) -> None:
    """End as Python does, but leave the modules: to free them would first copy the server's memory."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which then end their workers
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    serve()
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if isinstance(ended.code, str):
            raise
        _exit(int(ended.code or 0))
