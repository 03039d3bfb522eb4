"""A real Redis that a test kills, restarts, pauses and fills, under one URL and with nothing forgotten."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.redis.queues import DELIVERY_KEYS
from kronos_model.processes.children import LocalStackError
from tests.ports import free_port


class RedisUnderFault:
    """Appends every write to a file in ``folder``, and is started at once.

    ``connection`` is the test's own, for which no fault is meant; it answers in strings.

    Args:
        binary: The server; by default the one that this machine has.
    """

    connection: Any = None

    def __init__(self, folder: Path, binary: Path | None = None) -> None:
        self._folder, self._binary = folder, binary
        self._port: int | None = None
        for is_last in (False,) * 4 + (True,):
            try:
                self.start(free_port())
                break
            except LocalStackError:  # another test took the port first
                if is_last:
                    raise

    def start(self, port: int | None = None) -> None:
        """Start with all earlier data."""
        self._server = LocalRedis(data=self._folder, port=port or self._port, binary=self._binary)
        self._server.__enter__()
        self._port = port or self._port
        self.url = self._server.url
        if self.connection is None:
            self.connection = Redis.from_url(self.url, decode_responses=True)
        self.keep_at_once()

    def keep_at_once(self) -> None:
        """Write before each answer. By default Redis may put a write off for up to 2 s, while it syncs."""
        self.connection.config_set("appendfsync", "always")

    @property
    def pid(self) -> int:
        return self._server.child.pid

    def stop(self) -> None:
        """End as on SIGTERM."""
        self._server.__exit__(None, None, None)

    def kill(self) -> None:
        """End as on SIGKILL. With ``keep_at_once`` what it answered to is in its file."""
        self._server.child.kill()
        self.stop()

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Stop the server: its port refuses connections."""
        self.kill()
        try:
            yield
        finally:
            self.start()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Connections are taken by the kernel, and nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        """Make Redis refuse commands that need memory."""
        self.connection.config_set("maxmemory", 1)
        try:
            yield
        finally:
            self.connection.config_set("maxmemory", 0)

    def num_connections(self) -> int:
        """All but the test's own."""
        return len(self.connection.client_list()) - 1

    def kill_connections(self) -> None:
        """Close every connection except the test's own."""
        for kind in ("normal", "pubsub"):
            self.connection.client_kill_filter(_type=kind, skipme=True)

    def is_there(self) -> bool:
        """Whether it answers."""
        with contextlib.suppress(RedisError):
            return bool(self.connection.ping())
        return False

    def queued(self) -> dict[str, int]:
        """The length of each list but our own notes: messages that wait.

        An answer to a control command whose sender was killed stays: kombu gives it no end, and it is no job.
        """
        names = [str(key) for key in self.connection.scan_iter(count=1000, _type="list")]
        waiting = [
            name for name in names if not name.startswith("kronos:") and not name.endswith(".kronos.pidbox")
        ]
        return {name: int(self.connection.llen(name)) for name in waiting}

    def held(self) -> dict[str, int]:
        """Unacknowledged deliveries, by key."""
        ours = [key for keys in DELIVERY_KEYS.values() for key in keys]
        keys = {*ours, "unacked", "unacked_index"}
        counts: dict[str, int] = {}
        for key in sorted(keys):
            kind = self.connection.type(key)
            if kind in ("hash", "zset"):
                counts[key] = int(self.connection.hlen(key) if kind == "hash" else self.connection.zcard(key))
        return counts
