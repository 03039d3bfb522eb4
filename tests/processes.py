"""What tests ask about processes: whether they are gone, which a test started, what each takes."""

import contextlib
import os
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import WAIT_S

PAGE_BYTES = 4096
GONE = (FileNotFoundError, ProcessLookupError, PermissionError)


def await_end(pid: int, timeout_s: float = WAIT_S) -> bool:
    """Whether the process is gone within the time; a zombie that nobody has reaped counts as gone."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        try:
            os.kill(pid, 0)
            state = Path(f"/proc/{pid}/stat")
            if state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


def marked(name: str, value: str) -> dict[int, str]:
    """Every process whose environment has this variable, and its command line; zombies have neither."""
    mark = f"{name}={value}".encode()
    found: dict[int, str] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(*GONE):
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def in_sessions(leaders: Collection[int]) -> dict[int, str]:
    """Every process of these sessions, and its command line; no zombies."""
    found: dict[int, str] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(*GONE):
            state, _, _, session = (process / "stat").read_text().rpartition(")")[2].split()[:4]
            if state != "Z" and int(session) in leaders:
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
