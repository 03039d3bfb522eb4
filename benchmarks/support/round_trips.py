"""A proxy on loopback that counts the round trips of Redis's clients."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha1
from typing import Any, Final, Self
from urllib.parse import urlsplit

from kronos_client.redis.scripts import SCRIPTS, read_script
from kronos_model.processes.children import PACKAGE_ROOT

CHUNK_BYTES: Final = 2**16
NAMES: Final = {
    sha1(read_script(path.stem, folder).encode()).hexdigest(): path.stem
    for folder in (SCRIPTS, PACKAGE_ROOT / "worker" / "broker" / "lua")
    for path in folder.glob("*.lua")
}
"""Those of our scripts, by the hashes by which Redis knows them."""


class RoundTrips:
    """Forwards to the Redis server at ``url``; clients connect to its own ``url`` during a ``with`` block.

    A round trip is a request that is sent after an answer: a pipeline, however long, is one.
    """

    def __init__(self, url: str) -> None:
        self._server, self._given = urlsplit(url), url
        self._by_command: Counter[str] = Counter()
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        self._is_ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    def during(self, work: Callable[[], object], idle_per_s: float = 0.0) -> tuple[float, Counter[str]]:
        """Round trips while ``work`` runs, without those of idle clients; and all, by command or script."""
        before, start = self._by_command.copy(), time.monotonic()
        work()
        counted = self._by_command - before
        return counted.total() - idle_per_s * (time.monotonic() - start), counted

    def idle_per_s(self, seconds: float) -> float:
        """Round trips a second while nothing is done."""
        return self.during(lambda: time.sleep(seconds))[0] / seconds

    async def _serve(self) -> None:
        self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
        listener = await asyncio.start_server(self._forward, self._server.hostname, 0)
        port = listener.sockets[0].getsockname()[1]
        self.url = self._given.replace(f":{self._server.port}", f":{port}")
        self._is_ready.set()
        await self._closing.wait()
        listener.close()

    async def _forward(self, from_client: Any, to_client: Any) -> None:
        from_redis, to_redis = await asyncio.open_connection(self._server.hostname, self._server.port)
        is_answered = True

        async def requests() -> None:
            nonlocal is_answered
            begun = b""
            while data := await from_client.read(CHUNK_BYTES):
                # Redis answers a long pipeline while the rest of it is still on its way.
                if is_answered and not begun:
                    self._by_command[_first_command(data)] += 1
                is_answered = False
                to_redis.write(data)
                begun = _after_commands(begun + data)

        async def answers() -> None:
            nonlocal is_answered
            while data := await from_redis.read(CHUNK_BYTES):
                is_answered = True
                to_client.write(data)

        both = [asyncio.create_task(requests()), asyncio.create_task(answers())]
        with suppress(asyncio.CancelledError):  # the block ends
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for task, end in zip(both, (to_redis, to_client), strict=True):
            task.cancel()
            end.close()
        await asyncio.gather(*both, return_exceptions=True)


def _first_command(data: bytes) -> str:
    """The name of the first command in RESP, or that of its script."""
    _, _, command, _, argument, *_ = [*data.split(b"\r\n", 5), b"", b"", b""]
    return NAMES.get(argument.decode(errors="replace"), command.decode())


def _after_commands(data: bytes) -> bytes:
    """What follows the last whole command: the beginning of the next one."""
    start = 0
    with suppress(ValueError):  # from ``index`` or ``int``: the rest is still to come
        while start < len(data):
            at = data.index(b"\r\n", start) + 2
            for _ in range(int(data[start + 1 : at - 2])):
                end = data.index(b"\r\n", at) + 2
                at = end + int(data[at + 1 : end - 2]) + 2
            if at > len(data):
                break
            start = at
    return data[start:]
