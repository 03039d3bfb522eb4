"""Kernels are compiled once, by one process, into a folder that only this user can write."""

import json
import logging
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import llvmlite.binding
import pytest

from kronos_model.engine.native import compiling
from kronos_model.engine.native.compiling import (
    ANNOUNCEMENT,
    LEVELS,
    Target,
    is_warm,
    ready_kernels,
    targets,
    warm,
)
from kronos_model.errors import CompilationFailed, PackageMissing
from kronos_model.processes.children import own_environment
from tests.waiting import WAIT_S

STEP = "stand_in.step"
DTYPES = ("float32", "bfloat16")

# Each process that compiles or loads adds a line to a file: whether Numba found the kernel in its cache.
KERNEL = """
import os
from pathlib import Path
from numba import config, float32, njit, uint16
from stand_in.constants import ADDED

@njit(cache=bool(config.CACHE_DIR))
def add(x, y):
    return x + y + ADDED

def compile_for(weights, cached):
    formats = {"float32": float32, "bfloat16": uint16}
    add.compile((formats[weights], formats[cached]))
    with Path(os.environ["COMPILED"]).open("a") as file:
        file.write(f"{bool(add.stats.cache_hits)} {config.CPU_NAME}\\n")
"""

START = """
import json, sys
from kronos_model.engine.native.compiling import is_warm, ready_kernels

was_warm, lines = is_warm({dtypes}, "{step}"), []
looked = "numba" in sys.modules
step = ready_kernels({dtypes}, lines.append, "{step}")
from numba import config
print(json.dumps([was_warm, looked, lines, step.add(1.0, 2), config.CACHE_DIR, config.CACHE_LOCATOR_CLASSES]))
"""


def cache_folder(module: str) -> Path | None:
    """The folder of the compiled kernels; None if it cannot be made, or if others can write it."""
    try:
        return compiling._made_folder(module)
    except OSError:
        return None


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a small kernel in place of the step, and an empty folder for what is compiled."""
    folder = tmp_path / "sources" / "stand_in"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "constants.py").write_text("ADDED = 10\n")
    (folder / "step.py").write_text(KERNEL)
    monkeypatch.syspath_prepend(folder.parent)
    monkeypatch.setenv("PYTHONPATH", str(folder.parent))
    monkeypatch.setenv("COMPILED", str(tmp_path / "compiled"))
    monkeypatch.setenv(compiling.FOLDER_VARIABLE, str(tmp_path / "kernels"))
    monkeypatch.delenv("NUMBA_CPU_NAME", raising=False)
    for name in [name for name in sys.modules if name.startswith("stand_in")]:
        monkeypatch.delitem(sys.modules, name)
    return folder


def start(*prefix: str) -> subprocess.Popen[str]:
    command = [*prefix, sys.executable, "-c", START.format(dtypes=DTYPES, step=STEP)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=own_environment(), stdout=pipe, stderr=pipe, text=True)


def answer(process: subprocess.Popen[str]) -> tuple[list[Any], str]:
    """What a start printed, and its log."""
    out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, err
    return json.loads(out), err


def found_in_cache(tmp_path: Path) -> list[bool]:
    """For each process so far that asked Numba for the kernel."""
    file = tmp_path / "compiled"
    return [line.startswith("True") for line in file.read_text().splitlines()] if file.exists() else []


def test_the_first_start_compiles_and_others_load_until_a_source_changes(
    sources: Path, tmp_path: Path
) -> None:
    before = cache_folder(STEP)
    assert answer(start()) == ([False, False, [ANNOUNCEMENT], 13.0, "", ""], "")
    assert found_in_cache(tmp_path) == [False, True], "a child compiles, its parent loads"
    assert answer(start()) == ([True, False, [], 13.0, "", ""], "")
    assert found_in_cache(tmp_path) == [False, True, True]

    # Numba compares step.py alone.
    (sources / "constants.py").write_text("ADDED = 20\n")
    assert cache_folder(STEP) != before
    assert answer(start())[0] == [False, False, [ANNOUNCEMENT], 23.0, "", ""]
    assert found_in_cache(tmp_path)[3:] == [False, True]


def test_starts_at_the_same_time_share_one_compilation(sources: Path, tmp_path: Path) -> None:
    for process in [start(), start(), start()]:
        assert answer(process)[0][3] == 13.0
    assert sorted(found_in_cache(tmp_path)) == [False, True, True, True]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="levels are those of x86-64")
def test_an_image_is_warmed_for_each_level_whatever_the_builders_cpu(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "DTYPES", (DTYPES,))
    said: list[str] = []
    warm(said.append, STEP)
    lines = (tmp_path / "compiled").read_text().splitlines()
    assert lines == [f"False {level}" for level in LEVELS]
    zen = Target("znver4", "+avx2")
    monkeypatch.setattr(compiling, "targets", lambda: (zen, Target.level("x86-64-v4")))
    assert is_warm(DTYPES, STEP)
    assert not is_warm(("float32", "float32"), STEP)
    monkeypatch.setattr(compiling, "targets", lambda: (zen,))
    assert not is_warm(DTYPES, STEP)


@pytest.mark.skipif(len(targets()) < 2, reason="this CPU has no level")
def test_kernels_of_the_cpus_level_serve_until_there_are_its_own(sources: Path, tmp_path: Path) -> None:
    own, level = targets()
    folder = cache_folder(STEP)
    assert folder is not None
    level.marker(folder, DTYPES).touch()
    answer(start())
    own.marker(folder, DTYPES).touch()
    answer(start())
    lines = (tmp_path / "compiled").read_text().splitlines()
    assert lines == [f"False {level.name}", f"False {own.name}"]


def test_an_image_for_another_processor_is_not_warmed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    said: list[str] = []
    warm(said.append, "no_such_package.step")
    assert said == ["aarch64 has no levels: each machine compiles its own kernels"]


def test_a_folder_that_can_only_be_read_serves_once_it_is_warm(sources: Path, tmp_path: Path) -> None:
    # Root may write anywhere, but for its capabilities.
    prefix = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    if prefix and subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("root cannot give up its capabilities here: run it as another user")
    folder = cache_folder(STEP)
    assert folder is not None
    folder.chmod(0o500)
    said, log = answer(start(*prefix))
    assert said[:3] == [False, False, []]
    assert "Permission denied" in log
    folder.chmod(0o700)
    answer(start())
    folder.chmod(0o500)
    assert answer(start(*prefix)) == ([True, False, [], 13.0, "", ""], "")
    folder.chmod(0o700)
    assert found_in_cache(tmp_path) == [False, False, True, True]


def test_without_a_safe_folder_kernels_are_compiled_in_memory(sources: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kernels"
    folder.mkdir()
    folder.chmod(0o777)
    said, log = answer(start())
    assert said == [False, False, [], 13.0, "", ""]
    assert f"at every start: {folder} can be written by others than this user. Set KRONOS_KERNEL_CACHE" in log
    assert not [path for path in tmp_path.rglob("*.nb*") if path.is_file()]
    assert found_in_cache(tmp_path) == [False]


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
@pytest.mark.parametrize("place", ["kernels", "parent", "sources"])
def test_a_folder_is_safe_if_nobody_else_can_write_it_or_replace_it(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, mode: int
) -> None:
    folder = tmp_path / "parent" / "kernels"
    folder.mkdir(parents=True)
    monkeypatch.setenv(compiling.FOLDER_VARIABLE, str(folder))
    made = cache_folder(STEP)
    assert made is not None
    assert made.parent == folder
    ready_marker = targets()[0].marker(made, DTYPES)
    ready_marker.touch()
    assert is_warm(DTYPES, STEP)
    written = {"kernels": made, "parent": folder.parent, "sources": sources}[place]
    written.chmod(mode)
    # In a sticky folder, such as /tmp, nobody can replace a folder of this user.
    is_safe = place == "sources" or (place == "parent" and mode == 0o1777)
    assert is_warm(DTYPES, STEP) == is_safe
    assert (cache_folder(STEP) is not None) == is_safe


def test_a_folder_of_another_user_is_not_safe(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cache_folder(STEP) is not None
    if os.getuid() == 0:
        os.chown(tmp_path / "kernels", 12345, -1)
    else:
        user = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: user + 1)
    assert cache_folder(STEP) is None


def test_a_link_counts_as_the_folder_that_it_names(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "open")
    monkeypatch.setenv(compiling.FOLDER_VARIABLE, str(tmp_path / "link"))
    assert cache_folder(STEP) is None


def test_folders_are_made_for_this_user_alone_in_the_users_cache(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(compiling.FOLDER_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert not is_warm(DTYPES, STEP)
    assert not (tmp_path / "cache").exists()
    before = os.umask(0)
    try:
        folder = cache_folder(STEP)
    finally:
        os.umask(before)
    assert folder is not None
    assert folder.parent == tmp_path / "cache" / "kronos" / "kernels"
    for path in (folder, folder.parent, folder.parents[1]):
        assert path.stat().st_mode & 0o777 == 0o700
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", Mock(side_effect=RuntimeError))
    assert cache_folder(STEP) is None


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("import os; os.kill(os.getpid(), 9)", "the kernel compiler process ended with signal 9"),
        ("raise ValueError('no such vector')", "the kernel compiler process ended with status 1\n"),
        ("import time; time.sleep(1000)", "the compiler takes more than 1 s"),
    ],
    ids=["killed", "failed", "hanging"],
)
def test_a_failed_compilation_is_an_error_that_says_why(
    sources: Path, monkeypatch: pytest.MonkeyPatch, body: str, expected: str
) -> None:
    monkeypatch.setattr(compiling, "TIMEOUT_S", 1 if "sleep" in body else WAIT_S)
    (sources / "step.py").write_text(f"def compile_for(weights, cached):\n    {body}\n")
    with pytest.raises(CompilationFailed, match=f"^{expected}") as caught:
        ready_kernels(DTYPES, [].append, STEP)
    assert ("no such vector" in str(caught.value)) == ("raise" in body)
    assert not is_warm(DTYPES, STEP)


def test_a_kernel_that_would_be_cached_in_a_folder_that_is_not_checked_is_an_error(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sources / "step.py").write_text(KERNEL.replace("cache=bool(config.CACHE_DIR)", "cache=True"))
    monkeypatch.setenv(compiling.FOLDER_VARIABLE, str(sources / "step.py" / "no-folder"))
    process = start()
    assert "no locator available" in process.communicate(timeout=WAIT_S)[1]
    assert process.returncode == 1
    assert not list(tmp_path.rglob("*.nb*"))


def test_a_damaged_folder_is_an_error_that_names_it(sources: Path) -> None:
    (sources / "step.py").write_text("def compile_for(weights, cached):\n    raise EOFError('no data')\n")
    folder = cache_folder(STEP)
    assert folder is not None
    targets()[0].marker(folder, DTYPES).touch()
    with pytest.raises(CompilationFailed, match=rf"Remove {folder}.*EOFError\('no data"):
        ready_kernels(DTYPES, [].append, STEP)


def test_a_child_that_cannot_be_started_is_an_error(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", str(sources / "no-python"))
    with pytest.raises(CompilationFailed, match="cannot be started"):
        ready_kernels(DTYPES, [].append, STEP)


def test_without_numba_an_error_names_it(
    sources: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiling, "version", Mock(side_effect=PackageNotFoundError("numba")))
    assert not is_warm(DTYPES, STEP)
    with caplog.at_level(logging.WARNING), pytest.raises(PackageMissing, match="numba is not installed"):
        ready_kernels(DTYPES, [].append, STEP)
    assert not caplog.records


@pytest.mark.parametrize(
    ("lacks", "wanted", "expected"),
    [
        ((), None, ["a-cpu", "x86-64-v4"]),
        ((), "x86-64-v3", ["x86-64-v3"]),
        ((), "another-cpu", ["a-cpu", "x86-64-v4"]),
        (("avx512vl",), None, ["a-cpu", "x86-64-v3"]),
        (("avx512vl", "fma"), None, ["a-cpu"]),
    ],
)
def test_a_cpu_runs_its_own_kernels_or_those_of_its_best_level(
    monkeypatch: pytest.MonkeyPatch, lacks: tuple[str, ...], wanted: str | None, expected: list[str]
) -> None:
    features = llvmlite.binding.FeatureMap({name: name not in lacks for name in LEVELS["x86-64-v4"]})
    monkeypatch.setattr(llvmlite.binding, "get_host_cpu_features", lambda: features)
    monkeypatch.setattr(llvmlite.binding, "get_host_cpu_name", lambda: "a-cpu")
    if wanted is None:
        monkeypatch.delenv("NUMBA_CPU_NAME", raising=False)
    else:
        monkeypatch.setenv("NUMBA_CPU_NAME", wanted)
    assert [target.name for target in targets()] == expected


def test_a_system_without_features_compiles_for_its_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBA_CPU_NAME", raising=False)
    monkeypatch.setattr(llvmlite.binding, "get_host_cpu_features", Mock(side_effect=RuntimeError))
    assert targets() == (Target(llvmlite.binding.get_host_cpu_name(), ""),)
