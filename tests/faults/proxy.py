"""A proxy in front of Redis that answers chosen commands with errors, or goes silent without closing.

It reads each request of RESP 2 and 3. Answers stay in the order of their requests, also in pipelines,
transactions and subscriptions.
"""

import contextlib
import hashlib
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from kronos_client.redis import scripts
from worker.broker import deliveries

POLL_S = 0.05
SUBSCRIBING: Final = ("SUBSCRIBE", "PSUBSCRIBE", "UNSUBSCRIBE", "PUNSUBSCRIBE")
ABORTED: Final = "EXECABORT Transaction discarded because of previous errors."

SCRIPT_NAMES: Final = {
    hashlib.sha1(scripts.read_script(path.stem, folder).encode()).hexdigest(): path.stem
    for folder in (scripts.SCRIPTS, deliveries.SCRIPTS)
    for path in folder.glob("*.lua")
}
"""The names of the project's scripts, by what EVALSHA sends."""


@dataclass(frozen=True)
class Request:
    """A client's request. ``script`` is the name of the project's script that it runs, or empty."""

    raw: bytes
    command: str
    script: str

    @classmethod
    def of(cls, raw: bytes, words: list[bytes]) -> "Request":
        command, script = words[0].decode(errors="replace").upper(), ""
        if command == "EVALSHA":
            script = SCRIPT_NAMES.get(words[1].decode(), "")
        elif command == "EVAL":
            script = SCRIPT_NAMES.get(hashlib.sha1(words[1]).hexdigest(), "")
        return cls(raw, command, script)


@dataclass
class Rule:
    """Answers the requests that match, until a moment by ``time.monotonic``.

    Attributes:
        error: The error's code and text. None: the connection never receives anything again.
        is_after: Redis executes the command first.
        num_hits: Requests answered so far.
    """

    error: str | None
    matches: Callable[[Request], bool] = lambda request: True
    is_after: bool = False
    until: float = float("inf")
    num_hits: int = 0


@dataclass
class Slot:
    """The place of a request's answer: ``answer`` instead of Redis's if there is one."""

    is_sent: bool
    answer: bytes | None = None


def encoded(error: str) -> bytes:
    return f"-{error}\r\n".encode()


def read_frame(file: Any) -> bytes:
    """One whole value of RESP, as it was sent. Raises EOFError."""
    line: bytes = file.readline()
    if not line.endswith(b"\r\n"):
        raise EOFError
    kind, rest = line[:1], line[1:-2]
    if kind in b"$=!":
        line += file.read(int(rest) + 2) if int(rest) >= 0 else b""
    if kind in b"*~>%":
        count = int(rest) * (2 if kind == b"%" else 1)
        line += b"".join(read_frame(file) for _ in range(count))
    return line


def read_request(file: Any) -> Request:
    """One request: an array of texts."""
    frames = [read_frame(file) for _ in range(int(file.readline()[1:] or b"0"))]
    if not frames:
        raise EOFError
    raw = b"*%d\r\n" % len(frames) + b"".join(frames)
    return Request.of(raw, [frame.partition(b"\r\n")[2][:-2] for frame in frames])


class Link:
    """One connection through the proxy. Silent, it carries nothing either way and stays open."""

    def __init__(self, proxy: "FaultyProxy", near: socket.socket, far: socket.socket) -> None:
        self.is_silent = False
        self._proxy, self._near, self._far = proxy, near, far
        self._slots: deque[Slot] = deque()
        self._lock = threading.Lock()  # the near end's answers and their slots
        self._is_deaf = self._is_resp3 = self._is_subscribed = False
        self._in_transaction = self._is_aborted = False
        for pump in (self._pump_requests, self._pump_answers):
            threading.Thread(target=self._until_closed, args=(pump,), daemon=True).start()

    def close(self) -> None:
        for end in (self._near, self._far):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _until_closed(self, pump: Callable[[], None]) -> None:
        with contextlib.suppress(OSError, EOFError, ValueError):  # ValueError: a file of a closed socket
            pump()
        self.close()

    def _hold(self, is_held: Callable[[], bool]) -> None:
        while self.is_silent or self._proxy.is_silent or is_held():
            if self._proxy.is_closed:
                raise EOFError
            time.sleep(POLL_S)

    def _pump_requests(self) -> None:
        with self._near.makefile("rb") as requests:
            while True:
                request = read_request(requests)
                self._hold(lambda: False)
                self._serve(request, self._proxy.rule_for(request))

    def _serve(self, request: Request, rule: Rule | None) -> None:
        """Send a request on, or answer it. A transaction with a refused command is not executed."""
        command, raw, answer = request.command, request.raw, None
        is_sent = rule is None or rule.is_after or rule.error is None
        if rule is not None and rule.error is None:
            self._is_deaf = True
        elif rule is not None and rule.error is not None:
            answer = encoded(rule.error)
            if command in SUBSCRIBING or (self._in_transaction and command != "EXEC"):
                is_sent = False  # nothing is executed before EXEC
                self._is_aborted = self._in_transaction
        if command == "EXEC" and (self._is_aborted or not is_sent):
            raw, is_sent = b"*1\r\n$7\r\nDISCARD\r\n", True
            answer = answer or encoded(ABORTED)
        if command in ("MULTI", "EXEC", "DISCARD"):
            self._in_transaction = command == "MULTI" and is_sent
            self._is_aborted = False
        self._is_resp3 |= command == "HELLO" and b"\r\n3\r\n" in raw and is_sent
        with self._lock:
            # Subscriptions are answered by pushes, or on a connection of RESP 2 that has no other answers.
            self._is_subscribed |= is_sent and command in SUBSCRIBING and not self._is_resp3
            if not is_sent or not (self._is_subscribed or command in SUBSCRIBING):
                self._slots.append(Slot(is_sent, answer))
            self._send_own()
        if is_sent:
            self._far.sendall(raw)

    def _pump_answers(self) -> None:
        with self._far.makefile("rb") as answers:
            while True:
                frame = read_frame(answers)
                self._hold(lambda: self._is_deaf)
                with self._lock:
                    slot = self._slots.popleft() if self._slots and frame[:1] != b">" else Slot(is_sent=True)
                    self._near.sendall(slot.answer or frame)
                    self._send_own()

    def _send_own(self) -> None:
        while self._slots and not self._slots[0].is_sent:
            self._near.sendall(self._slots.popleft().answer or b"")


class FaultyProxy:
    """Listens on a loopback port and forwards to the server of ``url``.

    Attributes:
        url: The server's URL, through the proxy.
        is_silent: Nothing passes, also on new connections. Data sent meanwhile passes afterwards.
        rules: The first that matches a request applies.
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
        self.rules: list[Rule] = []
        self._links: list[Link] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> "FaultyProxy":
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

    def rule_for(self, request: Request) -> Rule | None:
        """The rule that applies, which counts the request."""
        for rule in list(self.rules):
            if time.monotonic() < rule.until and rule.matches(request):
                rule.num_hits += 1
                return rule
        return None

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
                if self.is_closed:  # meanwhile
                    self._links[-1].close()
