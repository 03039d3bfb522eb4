"""What /proc says of processes: which were started by a test, and what each of them takes."""

import contextlib
from dataclasses import dataclass
from pathlib import Path

PAGE_BYTES = 4096
GONE = (FileNotFoundError, ProcessLookupError, PermissionError)


def marked(name: str, value: str) -> dict[int, str]:
    """Every process whose environment has this variable, and its command line; zombies have neither."""
    mark = f"{name}={value}".encode()
    found: dict[int, str] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(*GONE):
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


@dataclass(frozen=True)
class Footprint:
    """What a process takes at one moment."""

    rss_bytes: int
    num_threads: int
    num_descriptors: int


def footprint(pid: int) -> Footprint | None:
    """None where there is no such process any more."""
    process = Path("/proc") / str(pid)
    try:
        pages = int((process / "statm").read_text().split()[1])
        num_threads = len(list((process / "task").iterdir()))
        return Footprint(pages * PAGE_BYTES, num_threads, len(list((process / "fd").iterdir())))
    except GONE:
        return None
