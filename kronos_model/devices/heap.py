"""Gives memory that was freed back to the system: glibc keeps pages that lie between others in use."""

import ctypes
import time
from typing import Final

TRIM_EVERY_S: Final = 10.0
"""A trim of 400 MB takes 10 ms."""

_libc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc alone has it


def trim_heap() -> None:
    """Return the free pages of this process's heap."""
    if _libc_trim is not None:
        _libc_trim(0)


class HeapTrimmer:
    """Trims the heap from time to time."""

    def __init__(self) -> None:
        self._next = time.monotonic() + TRIM_EVERY_S

    def trim_if_due(self) -> None:
        if time.monotonic() >= self._next:
            trim_heap()
            self._next = time.monotonic() + TRIM_EVERY_S
