"""The kernel's count of processes that it ended for want of memory."""

import sys
from pathlib import Path

import pytest

from worker.inference.isolation.isolation import num_oom_kills


@pytest.mark.parametrize(
    ("text", "count"), [("pgfault 9\noom_kill 3\noom_kill_other 5\n", 3), ("pgfault 9\n", None), ("", None)]
)
def test_the_kernels_count_is_read_or_none_if_it_is_missing(tmp_path: Path, text: str, count: int | None):
    vmstat = tmp_path / "vmstat"
    vmstat.write_text(text)
    assert num_oom_kills(vmstat) == count


def test_without_the_file_there_is_no_count(tmp_path: Path):
    assert num_oom_kills(tmp_path / "vmstat") is None


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only: run it on Linux")
def test_linux_has_a_count():
    assert num_oom_kills() is not None
