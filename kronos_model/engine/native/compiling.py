"""Compiles the kernels in a child process, once for each CPU, source and version, into Numba's cache on disk.

Entries of the cache are pickles, which run code when they are read. So a folder is used only if nobody but
this user and root can write it.
"""

import hashlib
import importlib
import logging
import os
import platform
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Final

from kronos_model.atomic_write import sync
from kronos_model.errors import CompilationFailed, KronosError, PackageMissing
from kronos_model.file_lock import lock
from kronos_model.processes.children import (
    POLL_S,
    ChildProcess,
    LocalStackError,
    module_command,
    own_environment,
)
from kronos_model.processes.json_child import ChildEnded

FOLDER_VARIABLE: Final = "KRONOS_KERNEL_CACHE"
STEP: Final = "kronos_model.engine.native.step"
LOCATOR: Final = "kronos_model.engine.native.locator.KernelFolder"
COMPILERS: Final = ("numba", "llvmlite", "numpy")
DTYPES: Final = (("float32", "float32"), ("bfloat16", "float32"), ("bfloat16", "bfloat16"))
"""Number formats of weights and of cached keys and values that an image is warmed for."""
TIMEOUT_S: Final = 300
"""Ten times what it takes; containers' startup probes allow for more."""
ANNOUNCEMENT: Final = "compiling the native kernels for this CPU, once: about half a minute"

_AVX2: Final = ("avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")
_AVX512: Final = ("avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
LEVELS: Final = {"x86-64-v4": (*_AVX2, *_AVX512), "x86-64-v3": _AVX2}
"""What images are warmed for: levels of x86-64 by LLVM's names, best first, and what their CPUs must have."""

Dtypes = tuple[str, str]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Target:
    """What the kernels are compiled for: LLVM's name of a CPU or level, and its features."""

    name: str
    features: str

    @classmethod
    def level(cls, name: str) -> "Target":
        # LLVM prefers vectors of 256 bits on this level, as its oldest CPUs clock down for longer ones.
        return cls(name, ",".join(f"+{feature}" for feature in LEVELS[name]) + ",-prefer-256-bit")

    def marker(self, folder: Path, dtypes: Dtypes) -> Path:
        """The file that says that a folder has these kernels."""
        digest = hashlib.sha256(self.features.encode()).hexdigest()[:8]
        return folder / "-".join((self.name, digest, *dtypes, "compiled"))


def targets() -> tuple[Target, ...]:
    """This CPU, and then its level, whose kernels may be slower; or the level in ``NUMBA_CPU_NAME``."""
    from llvmlite import binding

    wanted = os.environ.get("NUMBA_CPU_NAME")
    if wanted in LEVELS:
        return (Target.level(wanted),)
    try:
        features = binding.get_host_cpu_features()
    except RuntimeError:  # LLVM reads none on this system
        return (Target(binding.get_host_cpu_name(), ""),)
    levels = [name for name, needed in LEVELS.items() if all(features.get(feature) for feature in needed)]
    return (Target(binding.get_host_cpu_name(), features.flatten()), *map(Target.level, levels[:1]))


def is_warm(dtypes: Dtypes, module: str = STEP) -> bool:
    """Whether compiled kernels are there for this CPU and these formats of weights and of cached keys."""
    try:
        folder = _folder(module)
        _check_safe(folder)
        return any(target.marker(folder, dtypes).is_file() for target in targets())
    except (OSError, ImportError):
        return False


def ready_kernels(dtypes: Dtypes, announce: Callable[[str], object], module: str = STEP) -> ModuleType:
    """The module of the step, compiled for these formats of weights and of cached keys.

    Args:
        announce: Called with a line of progress if this takes long.

    Raises PackageMissing without Numba, and CompilationFailed.
    """
    folder = None
    try:
        target, *others = targets()
        try:
            folder = _made_folder(module)
            target = _compile_once((target, *others), folder, dtypes, announce, module)
        except OSError as error:
            folder = None
            log.warning(
                "The native kernels are compiled in memory, at every start: %s. Set %s to a folder that only "
                "this user can write.",
                error,
                FOLDER_VARIABLE,
            )
        with _numba_set_to(target, folder):
            step = importlib.import_module(module)
            step.compile_for(*dtypes)
    except ModuleNotFoundError as error:
        lacking = f"{error.name or error} is not installed, which the native kernels need"
        raise PackageMissing(lacking) from error
    except KronosError:
        raise
    except Exception as error:  # a damaged file of the cache raises anything
        remedy = f" Remove {folder} if it is damaged." if folder else ""
        raise CompilationFailed(f"the native kernels cannot be loaded.{remedy} {error!r}") from error
    return step


def warm(announce: Callable[[str], object], module: str = STEP) -> None:
    """Compile for every level, for an image that runs on CPUs that its builder may lack."""
    if platform.machine() != "x86_64":
        announce(f"{platform.machine()} has no levels: each machine compiles its own kernels")
        return
    folder = _made_folder(module)
    for name in LEVELS:
        for dtypes in DTYPES:
            _compile_once((Target.level(name),), folder, dtypes, announce, module)


def _compile_once(
    accepted: tuple[Target, ...], folder: Path, dtypes: Dtypes, announce: Callable[[str], object], module: str
) -> Target:
    """The first accepted target whose kernels are there. If there is none, a child compiles for the first.

    Processes that start together wait for one of them. A process that compiled would keep 300 MB.
    """

    def found() -> Target | None:
        return next((target for target in accepted if target.marker(folder, dtypes).exists()), None)

    if target := found():
        return target
    lock_file = folder / "lock"
    lock_file.touch()
    announce(ANNOUNCEMENT)
    with lock_file.open("r+b") as file:
        lock(file, CompilationFailed(f"another process holds {lock_file} for {TIMEOUT_S} s"), TIMEOUT_S)
        if target := found():
            return target
        _compile_in_child(accepted[0], folder, dtypes, module)
        for path in folder.iterdir():
            sync(path)
        accepted[0].marker(folder, dtypes).touch()
        return accepted[0]


def _compile_in_child(target: Target, folder: Path, dtypes: Dtypes, module: str) -> None:
    settings = {f"NUMBA_{name}": value for name, value in _settings(target, folder).items()}
    command = module_command("kronos_model.engine.native", *dtypes, module)
    try:
        child = ChildProcess("kernel compiler", command, env=own_environment(settings), grace_s=0)
    except LocalStackError as error:
        raise CompilationFailed(str(error)) from error
    deadline_s = time.monotonic() + TIMEOUT_S
    try:
        while (status := child.exit_status) is None and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
    finally:
        child.stop()
    if status != 0:
        late = f"the compiler takes more than {TIMEOUT_S} s"
        how = late if status is None else str(ChildEnded(child.name, status))
        raise CompilationFailed("\n".join((how, *child.tail())))


def _settings(target: Target, folder: Path | None) -> dict[str, str]:
    """Numba's settings, by their names in ``numba.config``.

    Without a folder, our locator refuses to cache; Numba's own would choose a folder that is not checked.
    """
    return {
        "CPU_NAME": target.name,
        "CPU_FEATURES": target.features,
        "CACHE_DIR": str(folder or ""),
        "CACHE_LOCATOR_CLASSES": LOCATOR,
    }


@contextmanager
def _numba_set_to(target: Target, folder: Path | None) -> Iterator[None]:
    """Numba reads the CPU once, but the folder for each function: other functions have their own again."""
    from numba.core import config

    settings = _settings(target, folder)
    before = {name: getattr(config, name) for name in ("CACHE_DIR", "CACHE_LOCATOR_CLASSES")}
    try:
        for name, value in settings.items():
            setattr(config, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(config, name, value)


def _folder(module: str) -> Path:
    """A folder for these sources and versions. Numba itself compares only the file of a cached function."""
    given = os.environ.get(FOLDER_VARIABLE)
    try:
        user_cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError as error:
        raise FileNotFoundError("this user has no home folder") from error
    parent = Path(given) if given else Path(user_cache, "kronos", "kernels")
    found = find_spec(module)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(name=module)
    digest = hashlib.sha256(repr((sys.version_info, *map(version, COMPILERS))).encode())
    for path in sorted(Path(found.origin).parent.rglob("*.py")):
        digest.update(f"\0{path.name}\0".encode() + path.read_bytes())
    return parent.resolve() / digest.hexdigest()[:16]


def _made_folder(module: str) -> Path:
    folder = _folder(module)
    for path in (*reversed(folder.parents), folder):
        if not path.is_dir():
            path.mkdir(mode=0o700, exist_ok=True)
    _check_safe(folder)
    return folder


def _check_safe(folder: Path) -> None:
    """Raise PermissionError if another user than root could write in a folder, or replace it."""
    for path in (folder, *folder.parents):
        status = path.lstat()
        is_sticky = path != folder and status.st_mode & stat.S_ISVTX  # nobody can replace what others own
        if status.st_uid not in (0, os.getuid()) or (status.st_mode & 0o022 and not is_sticky):
            raise PermissionError(f"{path} can be written by others than this user")
