"""A primary with a replica, and three sentinels that replace it: real servers, on this machine."""

import secrets
import time
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from kronos_cli.stack.local_redis import find_redis_server
from kronos_client.redis.connection import connect
from kronos_model.processes.children import ChildProcess
from tests.faults.redis_under_fault import RedisUnderFault
from tests.ports import free_port
from tests.waiting import await_true

SERVICE = "kronos-test"
NUM_SENTINELS = 3
DOWN_AFTER_MS, FAILOVER_MS = 2000, 3000
"""Sentinels that give a server 500 ms to answer took new primaries for dead, and replaced them again."""


class RedisWithSentinels(RedisUnderFault):
    """``url`` names the sentinels, which have a password of their own; ``connection`` follows the primary.

    Args:
        tls: Lines of configuration for TLS, and what the URL says of it.
        binary: The redis-server, if not the one that ``kronos up`` would start, which may lack TLS.
    """

    def __init__(
        self, folder: Path, tls: tuple[list[str], str] = ([], ""), binary: Path | None = None
    ) -> None:
        folder.mkdir(parents=True)
        self._tls_lines, tls_query = tls
        self._folder, self._binary = folder, binary or find_redis_server()
        self._password, self._sentinel_password = secrets.token_hex(8), secrets.token_hex(8)
        self._ports = [free_port() for _ in range(2)]
        self.servers: dict[int, ChildProcess] = {}
        for port in self._ports:
            self.start_server(port, replica_of=None if port == self._ports[0] else self._ports[0])
        self.sentinel_ports = [free_port() for _ in range(NUM_SENTINELS)]
        self._sentinels = [self._start_sentinel(port) for port in self.sentinel_ports]
        places = ",".join(f"127.0.0.1:{port}" for port in self.sentinel_ports)
        query = f"master={SERVICE}&sentinel_password={self._sentinel_password}{tls_query}"
        self.url = f"sentinel://:{self._password}@{places}/0?{query}"
        self.connection = connect(self.url)
        await_true(lambda: self._is_watched(self._ports[0]), "the sentinels know the replica and each other")

    def start_server(self, port: int, replica_of: int | None) -> None:
        """Start a server without data, as a replica if the port of its primary is given."""
        lines = [*self._listening(port), f"requirepass {self._password}", f"masterauth {self._password}"]
        lines += ['save ""', f"dir {self._folder}", "repl-diskless-sync-delay 0"]
        lines += [] if replica_of is None else [f"replicaof 127.0.0.1 {replica_of}"]
        self.servers[port] = ChildProcess("redis", [str(self._binary), "-"], stdin="\n".join([*lines, ""]))
        await_true(lambda: self._answers(port), f"Redis on port {port} answers")

    @property
    def primary_port(self) -> int:
        """By what the server itself says of its role."""
        (port,) = [port for port in self.servers if self._info(port).get("role") == "master"]
        return port

    def kill_primary(self) -> int:
        """SIGKILL, once the sentinels can replace it. Returns the port of the server that is left."""
        port = self.primary_port
        await_true(lambda: self._is_watched(port), "the sentinels know the primary and a whole replica")
        (left,) = set(self.servers) - {port}
        self._end(self.servers.pop(port))
        return left

    def await_new_primary(self) -> float:
        """Seconds until the server that is left is the primary."""
        began = time.monotonic()
        (left,) = self.servers
        await_true(lambda: self._info(left).get("role") == "master", "a new primary")
        return time.monotonic() - began

    def replace(self) -> None:
        """Start the killed server again, as a replica of the primary."""
        (left,) = self.servers
        (port,) = set(self._ports) - {left}
        self.start_server(port, replica_of=left)
        await_true(lambda: self._info(left).get("connected_slaves") == 1, "the replica follows")

    def stop(self) -> None:
        for process in (*self._sentinels, *self.servers.values()):
            self._end(process)

    def _listening(self, port: int) -> list[str]:
        if not self._tls_lines:
            return ["bind 127.0.0.1", f"port {port}"]
        return ["bind 127.0.0.1", "port 0", f"tls-port {port}", "tls-replication yes", *self._tls_lines]

    def _start_sentinel(self, port: int) -> ChildProcess:
        path = self._folder / f"sentinel-{port}.conf"
        lines = [*self._listening(port), f"requirepass {self._sentinel_password}"]
        lines += [f"sentinel sentinel-pass {self._sentinel_password}"]
        lines += [f"sentinel monitor {SERVICE} 127.0.0.1 {self._ports[0]} 2"]
        lines += [f"sentinel auth-pass {SERVICE} {self._password}"]
        lines += [f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}"]
        lines += [f"sentinel failover-timeout {SERVICE} {FAILOVER_MS}"]
        path.write_text("\n".join([*lines, ""]))
        return ChildProcess("sentinel", [str(self._binary), str(path), "--sentinel"])

    def _is_watched(self, primary: int) -> bool:
        """Whether a replica has all of this primary, and all sentinels know both and each other."""
        has_replica = self._info(primary).get("slave0", {}).get("state") == "online"
        return has_replica and all(self._knows(port, primary) for port in self.sentinel_ports)

    def _knows(self, sentinel_port: int, primary: int) -> bool:
        try:
            with self._at(sentinel_port, self._sentinel_password) as sentinel:
                (state,) = sentinel.sentinel_masters().values()
        except (RedisError, ValueError):
            return False
        known = state["port"], state["num-other-sentinels"], state["num-slaves"]
        return bool(known == (primary, NUM_SENTINELS - 1, 1))

    def _info(self, port: int) -> dict[str, Any]:
        try:
            with self._at(port, self._password) as server:
                return dict(server.info("replication"))
        except RedisError:
            return {}

    def _at(self, port: int, password: str) -> Redis:
        tls = {"ssl": True, "ssl_cert_reqs": "none", "ssl_check_hostname": False} if self._tls_lines else {}
        return Redis(port=port, password=password, socket_timeout=1, **tls)

    def _answers(self, port: int) -> bool:
        return bool(self._info(port))

    @staticmethod
    def _end(process: ChildProcess) -> None:
        process.kill()
        process.stop()
