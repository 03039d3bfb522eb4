"""This package's commands as child processes: their command lines, environments, and default model."""

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from worker.settings import Settings

BUNDLED_MODEL = "kronos-tiny"
PACKAGE_ROOT = Path(__file__).resolve().parents[2]


def own_command(*arguments: str) -> list[str]:
    """The command line of a child that runs one of this package's commands."""
    # -P: a folder named worker in the working folder is not this one.
    return [sys.executable, "-P", "-m", "worker", *arguments]


def own_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """This process's environment for such a child, with ``settings`` (whole variable names) on top."""
    paths = [str(PACKAGE_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    # A setting and its file are not both set.
    files = {f"{name}_FILE" for name in settings}
    inherited = {name: value for name, value in os.environ.items() if name not in files}
    return {**inherited, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1", **settings}


def own_node(name: str) -> str:
    """A Celery node name on this host."""
    return f"{name}@{socket.gethostname()}"


def names_redis(settings: Settings) -> bool:
    """Whether the environment names a Redis, which is then used instead of starting one."""
    return "redis_url" in settings.model_fields_set


def model_choice(settings: Settings, model: str | None, tokenizer: str | None) -> dict[str, str]:
    """The variables that choose a worker's checkpoint: as given, else as set, else the bundled one."""
    given = {"KRONOS_MODEL": model, "KRONOS_TOKENIZER": tokenizer}
    if model is None and settings.model is None:
        # A revision means another model's; the bundled one has none.
        given |= {"KRONOS_MODEL": BUNDLED_MODEL, "KRONOS_MODEL_REVISION": "", "KRONOS_TOKENIZER_REVISION": ""}
    return {name: value for name, value in given.items() if value is not None}
