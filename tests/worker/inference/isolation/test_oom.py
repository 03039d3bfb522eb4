"""The kernel's count of processes that it ended for want of memory."""

import sys
from pathlib import Path

import pytest

from worker.inference.isolation.oom import num_oom_kills


@pytest.mark.parametrize(
    ("text", "count"), [("pgfault 9\noom_kill 3\noom_kill_other 5\n", 3), ("pgfault 9\n", None), ("", None)]
)
def test_the_count_is_the_kernels_and_none_where_it_keeps_none(tmp_path: Path, text: str, count: int | None):
    vmstat = tmp_path / "vmstat"
    vmstat.write_text(text)
    assert num_oom_kills(vmstat) == count


def test_where_there_is_no_such_file_nobody_counts(tmp_path: Path):
    assert num_oom_kills(tmp_path / "vmstat") is None


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only: run it on Linux")
def test_a_linux_counts():
    assert num_oom_kills() is not None
