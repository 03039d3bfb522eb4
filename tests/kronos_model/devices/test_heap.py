"""What was freed leaves the process."""

import ctypes
from collections.abc import Callable

import psutil
import pytest

from kronos_model.devices import heap

BLOCK, NUM_BLOCKS = 4096, 20_000  # 80 MB

pytestmark = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="only glibc can trim its heap"
)


@pytest.fixture
def freed_mb():
    """Free 80 MB between blocks that stay, and return how many MB the process then gives back by a call."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
    blocks = [libc.malloc(BLOCK) for _ in range(NUM_BLOCKS)]
    for block in blocks:
        ctypes.memset(block, 1, BLOCK)
    kept = libc.malloc(BLOCK)  # above them, so that glibc cannot shorten its heap
    for block in blocks:
        libc.free(block)

    def given_back(call: Callable[[], object]) -> float:
        before = psutil.Process().memory_info().rss
        call()
        return (before - psutil.Process().memory_info().rss) / 1e6

    yield given_back
    libc.free(kept)


def test_free_pages_go_back_to_the_system(freed_mb):
    assert freed_mb(heap.trim_heap) > BLOCK * NUM_BLOCKS / 1e6 / 2


def test_the_heap_is_trimmed_from_time_to_time(freed_mb, monkeypatch):
    trimmer, now = heap.HeapTrimmer(), heap.time.monotonic()
    assert freed_mb(trimmer.trim_if_due) < 10
    monkeypatch.setattr(heap.time, "monotonic", lambda: now + heap.TRIM_EVERY_S + 1)
    assert freed_mb(trimmer.trim_if_due) > BLOCK * NUM_BLOCKS / 1e6 / 2
