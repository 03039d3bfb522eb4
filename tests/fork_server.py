"""Starts our processes as forks of one that has imported their packages.

These imports take most of a process's start, and the suite starts hundreds. Before the fork nothing is
imported that reads settings. Settings, signals and exit are those of a new process, and so is the environment
that /proc shows. The processes that a fork starts are forks too, if they are our own modules.

    python -m tests.fork_server FD         takes requests at this socket until its standard input ends
    python -m tests.fork_server COMMAND…   runs ``python -m COMMAND…`` with its own standard streams
"""

import atexit
import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from kronos_model.processes import children
from tests.waiting import WAIT_S

ROOT: Final = Path(__file__).parents[1]
WORKER: Final = (
    "celery.apps.worker", "celery.backends.redis", "celery.bin.celery", "celery.concurrency.thread",
    "celery.worker.consumer", "einops", "huggingface_hub.hf_api", "huggingface_hub.hub_mixin",
    "kombu.transport.redis", "matplotlib.figure", "numpy.typing", "pandas", "prometheus_client", "pydantic",
    "pythonjsonlogger.json", "safetensors.torch", "scipy.special", "torch", "yaml",
    "kronos_client.feeds.job", "kronos_client.redis.routing", "kronos_model.engine.build",
    "worker.inference.executor", "tests.loaded_kernels",
)  # fmt: skip
IMPORTED: Final[Mapping[str, Sequence[str]]] = {
    "celery": WORKER,
    "kronos_cli": (*WORKER, "flower.command", "mcp", "rich.progress", "rich.table"),
    "kronos_model.finetuning": (
        "accelerate", "einops", "pandas", "pydantic", "safetensors.torch", "scipy.special", "torch",
        "torch._dynamo", "tqdm", "yaml",
    ),
    "worker.inference.isolation_child": WORKER,
    "worker.inference.probe_child": WORKER,
    "torch.distributed.run": ("torch.distributed.elastic.rendezvous.registry", "torch.distributed.run"),
    "api_stub": (
        "fastapi", "httpx2", "kombu.transport.redis", "numpy", "prometheus_client", "pydantic",
        "mcp", "redis.asyncio", "uvicorn.loops.auto", "uvicorn.protocols.http.auto",
        "api_stub.routes.datasets", "api_stub.routes.feeds", "api_stub.routes.predict",
    ),
    "api_stub.uploads.file_child": (
        "pyarrow.parquet", "kronos_model.bars.files.instruments", "kronos_model.bars.files.lookback",
    ),
}  # fmt: skip
"""By the module that a command runs. They are imported when the first such command is started."""
KERNELS: Final = ("float32", "float32")
"""The formats of the native kernels that workers find loaded."""
READ_EARLY: Final = ("COVERAGE", "LD_", "MALLOC_", "OMP_", "PYTHON")
"""Variables that Python and libraries read at their start, and a fork would not."""
SHARED: Final = "TEST_FORK_SERVER"
"""The variable with the address of the server that all processes of a run share."""
MAX_REQUEST_BYTES: Final = 100_000
ENVIRONMENT: Final = dict(os.environ)


class Process(subprocess.Popen[Any]):
    """``python -m COMMAND`` in a session of its own; a fork where that does the same."""

    _connection: socket.socket | None = None

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], *, may_fork: bool = True, **options: Any
    ) -> None:
        self._forks = may_fork and can_fork(command, env)
        super().__init__([sys.executable, "-m", *command], env=env, start_new_session=True, **options)

    def _execute_child(self, args: list[str], *others: Any) -> None:
        if not self._forks:
            super()._execute_child(args, *others)
            return
        cwd, env = others[4:6]
        pipes = others[9:15]
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.connect(_address())
        request = json.dumps([list(map(str, args[2:])), dict(env), str(cwd or Path.cwd())])
        with Path(os.devnull).open("r+b", buffering=0) as nothing:
            files = [nothing.fileno() if file == -1 else file for file in (pipes[0], pipes[3], pipes[5])]
            socket.send_fds(self._connection, [request.encode()], files)
        self.pid = int(self._connection.recv(20))
        self._child_created = True
        self._close_pipe_fds(*pipes)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._connection is None:
            return super()._try_wait(wait_flags)
        if not select.select([self._connection], [], [], 0 if wait_flags & os.WNOHANG else None)[0]:
            return 0, 0
        with self._connection:  # an object may be kept for much longer than its process lives
            return self.pid, int(self._connection.recv(20))

    def _internal_poll(self, *args: Any, **options: Any) -> int | None:
        if self._connection is None:
            return super()._internal_poll(*args, **options)
        if self._waitpid_lock.acquire(False):
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid:
                        self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode


def run(
    command: Sequence[str], env: Mapping[str, str], cwd: Path = ROOT
) -> "subprocess.CompletedProcess[str]":
    """Run ``python -m COMMAND`` to its end."""
    pipe = subprocess.PIPE
    with Process(command, env, cwd=cwd, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            output, errors = process.communicate(timeout=WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def fork_children() -> None:
    """Let the children that this process starts by ``children`` be forks, too."""
    before = dict(os.environ)

    def start(
        args: list[str], *, env: Mapping[str, str] | None = None, **options: Any
    ) -> "subprocess.Popen[Any]":
        given = os.environ if env is None else env
        if args[:3] == [sys.executable, "-P", "-m"] and can_fork(args[3:], given, before):
            del options["start_new_session"]  # all forks have one
            return Process(args[3:], given, **options)
        return subprocess.Popen(args, env=env, **options)

    children.subprocess = SimpleNamespace(**vars(subprocess) | {"Popen": start})  # type: ignore[assignment]


def can_fork(command: Sequence[str], env: Mapping[str, str], own: Mapping[str, str] = os.environ) -> bool:
    """Whether a fork does what a new process does. Of those variables the server has the same as ``own``."""
    return (
        sys.platform == "linux"
        and command[0] in IMPORTED
        and _read_early(env) == _read_early(own)
        and not any(name.startswith("COVERAGE") for name in env)
    )


def _read_early(env: Mapping[str, str]) -> dict[str, str]:
    """A fork has the checkout in its path, and writes each line at once, anyway.

    Without OMP_NUM_THREADS, workers that share the cores set their number of threads themselves.
    """
    found = {name: value for name, value in env.items() if name.startswith(READ_EARLY)}
    found.pop("PYTHONUNBUFFERED", None)
    if not found.get("OMP_NUM_THREADS"):
        found["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "")
    path = [folder for folder in found.pop("PYTHONPATH", "").split(os.pathsep) if folder != str(ROOT)]
    return found | {"PYTHONPATH": os.pathsep.join(path)}


def share() -> None:
    """Start the server of this process and of those that it will start."""
    if sys.platform == "linux":
        os.environ[SHARED] = _address()


@functools.cache
def _address() -> str:
    """That of the server that is shared, or of one that starts now and ends with this process."""
    if SHARED in os.environ:
        return os.environ[SHARED]
    folder = tempfile.TemporaryDirectory(prefix="forks-")
    atexit.register(folder.cleanup)
    address = f"{folder.name}/socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen(100)
        file = listener.fileno()
        command = [sys.executable, "-m", __name__, str(file)]
        server = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=[file]
        )
    assert server.stdin is not None
    atexit.register(server.stdin.close)
    return address


def serve(listener: socket.socket) -> None:
    """Fork for each request. Returns in the new processes, and at the end of the input."""
    os.environ[SHARED] = listener.getsockname()
    keepers: list[int] = []
    while 0 not in select.select([0, listener], [], [])[0]:
        connection, _ = listener.accept()
        request, files, _, _ = socket.recv_fds(connection, MAX_REQUEST_BYTES, 3)
        if request:
            command, env, cwd = json.loads(request)
            for name in IMPORTED[command[0]]:
                importlib.import_module(name)
            gc.freeze()
            if (keeper := os.fork()) == 0:
                listener.detach()
                _keep(command, env, cwd, files, connection)
                return
            keepers.append(keeper)
        connection.close()
        for file in files:
            os.close(file)
        keepers = [keeper for keeper in keepers if not os.waitpid(keeper, os.WNOHANG)[0]]
    os._exit(0)


def _keep(
    command: list[str], env: dict[str, str], cwd: str, files: list[int], connection: socket.socket
) -> None:
    """Fork once more. The child returns; its parent sends the child's id, and its status at its end."""
    child = os.fork()
    if child == 0:
        connection.detach()
        _become(command, env, cwd, files)
        return
    connection.send(str(child).encode())
    for file in (0, 1, 2, *files):
        os.close(file)
    status = os.waitpid(child, 0)[1]
    with suppress(OSError):
        connection.send(str(status).encode())
    os._exit(0)


def _become(command: list[str], env: dict[str, str], cwd: str, files: list[int]) -> None:
    """Take the environment and files of a new process, in a session of its own."""
    os.setsid()
    os.chdir(cwd)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for target, file in enumerate(files):
        os.dup2(file, target)
    os.closerange(3, 64)
    set_by_imports = {name: value for name, value in os.environ.items() if name not in ENVIRONMENT}
    os.environ.clear()
    os.environ.update(set_by_imports | env)
    _show(env)
    sys.argv = command
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    fork_children()


def _show(env: Mapping[str, str]) -> None:
    """Write it where /proc shows a process's environment, new names first. What does not fit is left out."""
    start, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[47:49])
    names = sorted(env, key=ENVIRONMENT.__contains__)
    text = b"".join(f"{name}={env[name]}\0".encode() for name in names)
    ctypes.memmove(start, text[: end - start].ljust(end - start, b"\0"), end - start)


def _exit(status: int) -> None:
    """End as Python does, but leave the modules: to free them would first copy the server's memory."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    if not sys.argv[1].isdigit():
        sys.exit(Process(sys.argv[1:], os.environ, stdin=0, stdout=1, stderr=2).wait())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which then end their processes
    serve(socket.socket(fileno=int(sys.argv[1])))
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if isinstance(ended.code, str):
            raise
        _exit(int(ended.code or 0))
