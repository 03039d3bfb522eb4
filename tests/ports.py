"""Ports for servers that tests start, stop and start again."""

import itertools
import os
import random
import socket
from contextlib import ExitStack
from typing import Final

FIRST: Final = 20_000
END: Final = 32_000
"""From here the system gives ports to outgoing connections. One of them could take a port meanwhile."""
MAX_PROCESSES: Final = 16
"""Test processes with ports of their own: a server may take its port seconds after it was found free."""

_NUM_OWN: Final = (END - FIRST) // MAX_PROCESSES
_FIRST_OWN: Final = FIRST + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % MAX_PROCESSES * _NUM_OWN
_steps = itertools.count(random.SystemRandom().randrange(_NUM_OWN))


def free_port(count: int = 1) -> int:
    """A port without a listener, the first of ``count`` such ports in a row."""
    for step in itertools.islice(_steps, _NUM_OWN):
        first = _FIRST_OWN + step * count % (_NUM_OWN - count)
        with ExitStack() as sockets:
            try:
                for port in range(first, first + count):
                    sockets.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise AssertionError(f"no {count} free ports in a row")
