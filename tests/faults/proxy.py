"""A TCP proxy in front of Redis that goes silent without closing: what a dropped route does."""

import contextlib
import socket
import threading
import time
from urllib.parse import urlsplit, urlunsplit

CHUNK_BYTES = 65536
POLL_S = 0.05


class Link:
    """One connection through the proxy. Silent, it carries nothing either way and stays open."""

    def __init__(self, proxy: "SilentProxy", near: socket.socket, far: socket.socket) -> None:
        self.is_silent = False
        self.is_deaf_to_answers = False
        self._proxy = proxy
        self._sockets = (near, far)
        for source, sink, is_answer in ((near, far, False), (far, near, True)):
            threading.Thread(target=self._pump, args=(source, sink, is_answer), daemon=True).start()

    def close(self) -> None:
        for end in self._sockets:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _is_held(self, is_answer: bool) -> bool:
        return self.is_silent or self._proxy.is_silent or (is_answer and self.is_deaf_to_answers)

    def _pump(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                if not is_answer and self._proxy.lost_answer and self._proxy.lost_answer in data:
                    self.is_deaf_to_answers = True
                    self._proxy.num_lost_answers += 1
                while self._is_held(is_answer):
                    if self._proxy.is_closed:
                        return
                    time.sleep(POLL_S)
                sink.sendall(data)
        self.close()


class SilentProxy:
    """Listens on a loopback port and forwards to the server of ``url``.

    Attributes:
        url: The server's URL, through the proxy.
        is_silent: Nothing passes, also on new connections. Data sent meanwhile passes afterwards.
        lost_answer: A connection that sends these bytes never receives anything again.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._server = (parts.hostname, parts.port or 6379)
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = urlunsplit(parts._replace(netloc=f"{parts.netloc.rpartition('@')[0]}@127.0.0.1:{port}"))
        self.is_silent = False
        self.is_closed = False
        self.lost_answer = b""
        self.num_lost_answers = 0
        self._links: list[Link] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> "SilentProxy":
        return self

    def __exit__(self, *_: object) -> None:
        self.is_closed = True
        self._listener.close()
        for link in self._links:
            link.close()

    def silence_open_connections(self) -> int:
        """Silence all open connections; new ones work. Returns the number of silenced ones."""
        links = [link for link in self._links if not link.is_silent]
        for link in links:
            link.is_silent = True
        return len(links)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(self._server, timeout=2)
                except OSError:
                    near.close()
                    continue
                far.settimeout(None)
                self._links.append(Link(self, near, far))
