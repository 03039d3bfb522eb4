"""How tests wait for what must come."""

import time
from collections.abc import Callable

WAIT_S = 120
"""Far longer than anything takes on a slow and busy machine: what has not come by then never comes."""


def await_true(condition: Callable[[], object], what: str = "what the test waits for") -> float:
    """Wait until the condition holds; return the seconds that took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < WAIT_S, f"not within {WAIT_S} s: {what}"
        time.sleep(0.01)
    return time.monotonic() - began
