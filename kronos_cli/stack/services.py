"""The services that ``kronos up`` starts on one machine, and what each of them is given."""

import importlib.util
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rich.console import Console

from kronos_cli.settings import CliSettings
from kronos_cli.stack.own_commands import own_command
from kronos_cli.stack.ports import FLOWER_PORT, free_port
from kronos_cli.stack.processes import ProcessStack
from kronos_model.devices.cores import num_cores
from kronos_model.processes.children import LocalStackError
from kronos_model.processes.environment import module_command, own_environment

API_PACKAGES: Final = ("fastapi", "uvicorn", "api_stub.__main__")


def check_ports(wanted: Mapping[str, int | None]) -> None:
    """Raise LocalStackError if a port that an option asks for is taken: its service would seem to be ours."""
    for option, port in wanted.items():
        if port is not None and free_port(port) != port:
            raise LocalStackError(f"port {port} is taken: give {option} another, or leave it out")


def start_worker(stack: ProcessStack, name: str, variables: Mapping[str, str], grace_s: int) -> None:
    """Start a worker; ``variables`` name its role."""
    command = own_command("worker")
    stack.start(name, command, env=own_environment(variables), grace_s=grace_s, group="workers")


def start_flower(
    stack: ProcessStack, port: int | None, settings: CliSettings, common: Mapping[str, str]
) -> tuple[str, str | None]:
    """Start Flower; returns its address, and its password if it was made up here."""
    port = port or free_port(FLOWER_PORT)
    given = settings.flower_password
    password = given.get_secret_value() if given is not None else secrets.token_urlsafe(12)
    stack.start(
        "flower",
        own_command("flower", "--port", str(port)),
        env=own_environment({**common, "KRONOS_FLOWER_PASSWORD": password}),
    )
    return f"http://127.0.0.1:{port}", None if given is not None else password


def start_api(
    stack: ProcessStack,
    port: int | None,
    settings: CliSettings,
    common: Mapping[str, str],
    console: Console,
) -> str | None:
    """Start the HTTP API and its page; returns its address, or None after it printed the reason."""
    missing = [name for name in API_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        brings = 'pip install ".[api]" in the checkout brings them'
        console.print(f"No API and page: {', '.join(missing)} not installed; {brings}", soft_wrap=True)
        return None
    port = port or free_port(settings.api_port)
    command = module_command("api_stub")
    stack.start("api", command, env=own_environment({**common, "KRONOS_API_PORT": str(port)}))
    return f"http://{settings.api_host}:{port}"


def shared_folders(data: Path, settings: CliSettings) -> dict[str, str]:
    """Make the folders of candles and of models, which all processes share: as set, else below ``data``.

    Raises LocalStackError if one cannot be made.
    """
    folders = {
        "KRONOS_DATA_FOLDER": settings.data_folder or data / "data",
        "KRONOS_MODEL_FOLDER": settings.model_folder or data / "models",
    }
    is_set = {"KRONOS_DATA_FOLDER": settings.data_folder, "KRONOS_MODEL_FOLDER": settings.model_folder}
    for name, folder in folders.items():
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            given = name if is_set[name] else "--data"
            raise LocalStackError(
                f"{folder} cannot be made: {error.strerror}; give {given} a folder that can be written to"
            ) from error
    return {name: str(folder.resolve()) for name, folder in folders.items()}


def worker_names(num_workers: int) -> list[str]:
    """The names of the workers, which begin the lines of their logs."""
    if num_workers == 1:
        return ["worker"]
    return [f"worker-{number}" for number in range(1, num_workers + 1)]


def worker_share(settings: CliSettings, index: int, num_workers: int) -> dict[str, str]:
    """The variables of one of several workers on this machine: its share of cores and ports."""
    share = metrics_share(settings, index)
    if num_workers > 1 and settings.threads is None:
        share["KRONOS_THREADS"] = str(max(1, num_cores() // num_workers))
    return share


def metrics_share(settings: CliSettings, index: int) -> dict[str, str]:
    """A port of its own for a worker's metrics, if they are served."""
    return (
        {} if settings.metrics_port is None else {"KRONOS_METRICS_PORT": str(settings.metrics_port + index)}
    )
