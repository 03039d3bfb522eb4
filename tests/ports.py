"""Ports for servers that tests start, stop and start again."""

import random
import socket
from contextlib import ExitStack
from typing import Final

FIRST: Final = 20_000
END: Final = 32_000
"""From here the system gives ports to outgoing connections. One of them could take a port meanwhile."""


def free_port(count: int = 1) -> int:
    """A port without a listener, the first of ``count`` such ports in a row."""
    for first in random.SystemRandom().sample(range(FIRST, END), 100):
        with ExitStack() as sockets:
            try:
                for port in range(first, first + count):
                    sockets.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise AssertionError(f"no {count} free ports in a row")
