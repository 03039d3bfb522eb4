"""Sending a job from an event loop: on a thread, which goes on where the task that waits is cancelled."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from kronos_client.contract.errors import JobError
from kronos_client.core.handle import JobHandle
from kronos_client.core.retrying import Retries

Handle = TypeVar("Handle", bound=JobHandle[Any, Any])


async def sent(send: Callable[[], Handle], retries: Retries, *, may_stay: bool) -> Handle:
    """What ``send`` gives on a thread of asyncio's, tried again as ``retries`` says.

    Where this task is cancelled meanwhile, the job is cancelled as well, as soon as it is enqueued; unless it
    ``may_stay``, since its id is the caller's, who may ask for it.
    """
    while True:
        sending = _Sending(send)
        try:
            return await asyncio.to_thread(sending.run)
        except JobError as error:
            await asyncio.sleep(retries.pause_s(error))
        except asyncio.CancelledError:
            if not may_stay and (handle := sending.give_up()) is not None:
                asyncio.get_running_loop().run_in_executor(None, _cancel, handle)
            raise


class _Sending(Generic[Handle]):
    """One job on its way, of which either the thread or the task is the last to know."""

    def __init__(self, send: Callable[[], Handle]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._handle: Handle | None = None
        self._is_given_up = False

    def run(self) -> Handle:
        """On the thread."""
        handle = self._send()
        with self._lock:
            self._handle = handle
            is_given_up = self._is_given_up
        if is_given_up:
            _cancel(handle)
        return handle

    def give_up(self) -> Handle | None:
        """Have the thread cancel the job; where it is enqueued already, that is left to the caller."""
        with self._lock:
            self._is_given_up = True
            return self._handle


def _cancel(handle: JobHandle[Any, Any]) -> None:
    with suppress(JobError):  # it goes on then, and nobody looks for it
        handle.cancel()
