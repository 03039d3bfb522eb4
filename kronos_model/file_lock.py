"""A lock that one process holds on an open file, until it closes the file or ends."""

import fcntl
import time
from typing import IO, Any, Final

POLL_S: Final = 0.1


def lock(file: IO[Any], error: Exception, wait_s: float = 0.0) -> None:
    """Lock a file. If another process keeps its lock for ``wait_s``, close it and raise ``error``."""
    deadline_s = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                file.close()
                raise error from None
        time.sleep(POLL_S)
