"""The services that ``kronos up`` and ``kronos demo`` start on one machine: command lines and variables."""

import importlib.util
import secrets
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from kronos_cli.settings import CliSettings
from kronos_cli.stack.local_redis import LocalRedis
from kronos_cli.stack.ports import free_port
from kronos_cli.stack.processes import FLOWER_PORT, ProcessStack
from kronos_model.checkpoints.names import BUNDLED_MODEL
from kronos_model.devices.cores import intra_op_threads
from kronos_model.processes.children import LocalStackError, module_command

API_PACKAGES: Final = ("fastapi", "uvicorn", "api_stub.__main__")
CORES_KEPT_FREE: Final = 1
"""Cores left to Redis, the API and Flower. A thread that waits for a core delays its whole worker."""


def own_command(*arguments: str) -> list[str]:
    """The command line of a child process that runs ``kronos`` with these arguments."""
    return module_command("kronos_cli", *arguments)


def model_choice(settings: CliSettings, model: str | None, tokenizer: str | None) -> dict[str, str]:
    """The variables that choose a worker's checkpoint: from options, else settings, else the bundled one."""
    given = {"KRONOS_MODEL": model, "KRONOS_TOKENIZER": tokenizer}
    if model is None and settings.model is None:
        # A revision that is set belongs to another model. The bundled model has none.
        given |= {"KRONOS_MODEL": BUNDLED_MODEL, "KRONOS_MODEL_REVISION": "", "KRONOS_TOKENIZER_REVISION": ""}
    return {name: value for name, value in given.items() if value is not None}


def start_redis(
    exits: ExitStack, stack: ProcessStack, settings: CliSettings, **given: Any
) -> LocalRedis | None:
    """Enter the stack, with a ``LocalRedis`` unless KRONOS_REDIS_URL is set. Raises LocalStackError."""
    is_set = "redis_url" in settings.model_fields_set
    redis = None if is_set else exits.enter_context(LocalRedis(**given))
    exits.enter_context(stack)
    if redis is not None:
        # The stack stops Redis last, since workers write to it until they end.
        stack.adopt(redis.child, redis.restart)
    return redis


def start_flower(
    stack: ProcessStack, port: int | None, settings: CliSettings, common: Mapping[str, str]
) -> tuple[str, str | None]:
    """Start Flower. Returns its address, and its password if it was generated here."""
    port = port or free_port(FLOWER_PORT)
    given = settings.flower_password
    password = given.get_secret_value() if given is not None else secrets.token_urlsafe(12)
    variables = {**common, "KRONOS_FLOWER_PASSWORD": password}
    stack.start("flower", own_command("flower", "--port", str(port)), variables)
    return f"http://127.0.0.1:{port}", None if given is not None else password


def start_api(
    stack: ProcessStack, port: int | None, settings: CliSettings, common: Mapping[str, str], console: Console
) -> str | None:
    """Start the HTTP API. Returns its address, or None after printing which package is missing."""
    if missing := [name for name in API_PACKAGES if importlib.util.find_spec(name) is None]:
        text = f"The API and its page are not started; not installed: {', '.join(missing)}."
        console.print(f'{text} Run pip install ".[api]" in the checkout.', soft_wrap=True)
        return None
    port = port or free_port(settings.api_port, settings.api_host)
    stack.start("api", module_command("api_stub"), {**common, "KRONOS_API_PORT": str(port)})
    return f"http://{settings.api_host}:{port}"


def shared_folders(data: Path, settings: CliSettings) -> dict[str, str]:
    """Create the folders of candles and models: as set, else below ``data``. Raises LocalStackError."""
    folders = {}
    for name, given, default in (
        ("KRONOS_DATA_FOLDER", settings.data_folder, data / "data"),
        ("KRONOS_MODEL_FOLDER", settings.model_folder, data / "models"),
    ):
        folder = given or default
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            remedy = f"give {name if given else '--data'} a folder that can be written"
            raise LocalStackError(f"{folder} cannot be created: {error.strerror}; {remedy}") from error
        folders[name] = str(folder.resolve())
    return folders


def worker_names(num_workers: int) -> list[str]:
    """The names of the workers, as their log lines show them."""
    return [f"worker-{number}" for number in range(1, num_workers + 1)] if num_workers > 1 else ["worker"]


def worker_share(
    settings: CliSettings, index: int, num_sharing: int, num_kept_free: int = CORES_KEPT_FREE
) -> dict[str, str]:
    """The variables of one worker on this machine: its metrics port, and its share of the cores."""
    share = {}
    if settings.metrics_port is not None:
        share["KRONOS_METRICS_PORT"] = str(settings.metrics_port + index)
    threads = intra_op_threads(settings.threads, num_sharing, num_kept_free=num_kept_free)
    if threads is not None:
        share["KRONOS_THREADS"] = str(threads)
    return share
