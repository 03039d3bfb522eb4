"""LoopThread: runs a core's event loop on a thread, for callers without one."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from kronos_client.core.core import Core

CLOSE_S: Final = 5.0
"""Seconds to wait for the thread to end."""

T = TypeVar("T")

_OF_THE_PARENT: Final[list[object]] = []
"""Never freed: freeing them in a forked child would close the parent's connections too."""


class LoopClosed(RuntimeError):
    """The client was closed by another thread."""


class LoopThread:
    """A core on its own thread. It starts on first use, and again after ``close`` or in a forked process.

    May be used by several threads at once.
    """

    def __init__(self, make_core: Callable[[], Core]) -> None:
        self._make_core = make_core
        self._lock = threading.Lock()
        self._running: _Running | None = None

    def run(self, work: Callable[[Core], Coroutine[Any, Any, T]]) -> T:
        """Run ``work`` on the loop and return its value. An interrupt of this thread cancels it."""
        running = self._start()
        return running.run(work(running.core))

    def iterate(self, values: Callable[[Core], AsyncGenerator[T, None]]) -> Generator[T, None, None]:
        """Run a generator on the loop, and yield its values."""
        running = self._start()
        generator = values(running.core)
        try:
            with suppress(StopAsyncIteration):
                while True:
                    yield running.run(generator.__anext__())
        finally:
            # RuntimeError: its last step was interrupted, or the loop is closed; then it ends by itself.
            with suppress(RuntimeError):
                running.run(generator.aclose())

    def close(self) -> None:
        """Close the core's connections, and end the thread."""
        with self._lock:
            running, self._running = self._running, None
        if running is not None:
            running.stop()

    def _start(self) -> _Running:
        with self._lock:
            running = self._running
            if running is None or running.pid != os.getpid():
                if running is not None:
                    _OF_THE_PARENT.append(running)
                self._running = running = _Running(self._make_core())
                weakref.finalize(self, running.stop)  # if the client is never closed
            return running


class _Running:
    """A core on its thread, in one process."""

    def __init__(self, core: Core) -> None:
        self.core, self.pid = core, os.getpid()
        self._is_ready = threading.Event()
        args = (self._main(),)
        self._thread = threading.Thread(target=asyncio.run, args=args, name="kronos-client", daemon=True)
        self._thread.start()
        self._is_ready.wait()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError as error:
            work.close()
            raise LoopClosed("the client was closed by another thread") from error
        try:
            return future.result()
        finally:
            future.cancel()  # has an effect only if this thread was interrupted

    def stop(self) -> None:
        if self.pid != os.getpid() or not self._thread.is_alive():
            return
        with suppress(RuntimeError):  # it ended meanwhile
            self._loop.call_soon_threadsafe(self._is_over.set)
        if threading.current_thread() is not self._thread:  # garbage collection may run there
            self._thread.join(CLOSE_S)

    async def _main(self) -> None:
        self._loop, self._is_over = asyncio.get_running_loop(), asyncio.Event()
        self._is_ready.set()
        await self._is_over.wait()
        await self.core.close()
