"""The driver's version, from the texts of real machines, and what CUDA needs."""

from pathlib import Path

import pytest

from kronos_model.devices import driver
from kronos_model.devices.driver import driver_problem, driver_version

PROPRIETARY = """NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023
GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)
"""
OPEN = """NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder@U22)
GCC version:  gcc version 12.3.0
"""


@pytest.fixture(autouse=True)
def _fresh_process() -> None:
    driver_version.cache_clear()


@pytest.mark.parametrize(
    ("text", "version"), [(PROPRIETARY, "535.104.05"), (OPEN, "580.65.06"), ("something else", None)]
)
def test_the_kernel_modules_own_text_is_read(tmp_path: Path, text: str, version: str | None) -> None:
    (tmp_path / "version").write_text(text)
    assert driver_version(tmp_path / "version") == version


@pytest.mark.parametrize(
    ("script", "version"),
    [("echo 576.02; echo 576.02", "576.02"), ("echo no devices; exit 9", None), (None, None)],
)
def test_without_that_text_nvidia_smi_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, version: str | None
) -> None:
    if script is not None:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert driver_version(tmp_path / "none") == version


@pytest.mark.parametrize(
    ("version", "cuda", "needed"),
    [
        ("535.104.05", "13.0", "580"),
        ("579.99", "13.2", "580"),
        ("470.82.01", "12.6", "525"),
        ("580.65.06", "13.0", None),
        ("525.60.13", "12.6", None),
        ("535.104.05", "99.0", None),
        (None, "13.0", None),
        ("535.104.05", None, None),
    ],
)
def test_a_driver_that_is_too_old_is_named_with_the_one_needed(
    version: str | None, cuda: str | None, needed: str | None
) -> None:
    problem = driver_problem(version, cuda)
    assert (problem is None) == (needed is None)
    if needed is not None:
        assert str(problem).startswith(f"driver {version} found, but CUDA {cuda}")
        assert f"needs {needed} or newer" in str(problem)
        assert driver.OLDER_CUDA_INDEX in str(problem)
