"""The command line and the environment of a child process that runs a module of these packages."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

PACKAGE_ROOT: Final = Path(__file__).resolve().parents[2]


def module_command(module: str, *arguments: str) -> list[str]:
    """The command line. A folder of the module's name in the working folder is not imported instead (-P)."""
    return [sys.executable, "-P", "-m", module, *arguments]


def own_environment(settings: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """This process's environment for such a child, with ``settings`` (whole variable names) on top."""
    paths = [str(PACKAGE_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    # A setting and its file are not both set.
    files = {f"{name}_FILE" for name in settings}
    inherited = {name: value for name, value in os.environ.items() if name not in files}
    return {**inherited, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1", **settings}
