"""How tests wait for what must come."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

WAIT_S = 120
"""Far longer than anything takes on a slow and busy machine: what has not come by then never comes."""


def await_true(condition: Callable[[], object], what: str = "what the test waits for") -> float:
    """Wait until the condition holds; return the seconds that took.

    Asks less often the longer it waits: many conditions ask Redis, and the worker needs the processor.
    """
    began = time.monotonic()
    while not condition():
        waited_s = time.monotonic() - began
        assert waited_s < WAIT_S, f"not within {WAIT_S} s: {what}"
        time.sleep(min(0.05, 0.01 + waited_s / 50))
    return time.monotonic() - began


@contextmanager
def repeated(call: Callable[[], object], every_s: float) -> Iterator[None]:
    """Makes the call again and again, on a thread, as long as the block lasts."""
    is_over = threading.Event()

    def repeat() -> None:
        while not is_over.wait(every_s):
            call()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
