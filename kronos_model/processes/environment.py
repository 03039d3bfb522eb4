"""The environment of a child process that runs one of these packages."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

PACKAGE_ROOT: Final = Path(__file__).resolve().parents[2]


def own_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """This process's environment for such a child, with ``settings`` (whole variable names) on top."""
    paths = [str(PACKAGE_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    # A setting and its file are not both set.
    files = {f"{name}_FILE" for name in settings}
    inherited = {name: value for name, value in os.environ.items() if name not in files}
    return {**inherited, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1", **settings}
