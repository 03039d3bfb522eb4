"""Child processes that run a module of these packages: their command line, environment and exit."""

import atexit
import gc
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

PACKAGE_ROOT: Final = Path(__file__).resolve().parents[2]


def module_command(module: str, *arguments: str) -> list[str]:
    """The command line. With -P, a folder of that name in the working folder is not imported instead."""
    return [sys.executable, "-P", "-m", module, *arguments]


def own_environment(settings: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """This process's environment for such a child, changed by ``settings`` (by variable name)."""
    paths = [str(PACKAGE_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    # A setting and its _FILE variable exclude each other.
    files = {f"{name}_FILE" for name in settings}
    inherited = {name: value for name, value in os.environ.items() if name not in files}
    return {**inherited, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1", **settings}


def collect_nothing_at_exit() -> None:
    """Skip garbage collection at the end of this process; the operating system frees its memory.

    At exit the interpreter collects garbage several times. PyTorch's modules are 170,000 objects, so that
    takes most of a second. Files and threads end as usual. Only for the main program of a process.
    """
    atexit.register(gc.freeze)
