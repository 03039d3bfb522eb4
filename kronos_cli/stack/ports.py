"""TCP ports of this machine."""

import socket
from contextlib import suppress
from typing import Final

LOOPBACK: Final = "127.0.0.1"


def why_not_free(host: str, port: int) -> str | None:
    """The reason why a server cannot listen there, or None."""
    try:
        _bound_port(host, port)
    except OSError as error:
        return error.strerror or str(error)
    return None


def free_port(preferred: int = 0, host: str = LOOPBACK) -> int:
    """A free port of this address, the preferred one if possible."""
    with suppress(OSError):
        return _bound_port(host, preferred)
    return _bound_port(host, 0)


def _bound_port(host: str, port: int) -> int:
    """Bind the port for a moment and return it. Raises OSError."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family) as probe:
        # Like servers: a port that was closed a moment ago counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
        return int(probe.getsockname()[1])
