"""Redis, workers, API and Flower on one machine, their logs side by side, until Ctrl-C."""

import importlib.util
import json
import secrets
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.text import Text

from kronos_cli.settings import CliSettings
from kronos_cli.stack.local_redis import LocalRedis, free_port
from kronos_cli.stack.own_commands import BUNDLED_MODEL, model_choice, names_redis, own_command
from kronos_cli.stack.processes import ProcessStack
from kronos_cli.stack.restarts import MAX_RESTARTS, WINDOW_S, Restarts
from kronos_model.devices.cores import num_cores
from kronos_model.processes.children import ChildProcess, LineSink, LocalStackError
from kronos_model.processes.environment import module_command, own_environment

REDIS_PORT = 6379
FLOWER_PORT = 5555
WORKER_GRACE_S = 60
FINETUNE_MARGIN_S: Final = 15
"""Beyond what training may take to save what it has."""
STYLES = {"redis": "red", "worker": "cyan", "finetune": "blue", "flower": "magenta", "api": "green"}
API_PACKAGES: Final = ("fastapi", "uvicorn", "api_stub.__main__")


@dataclass(frozen=True)
class UpOptions:
    """``data`` is where jobs, candles and trained models are kept; None elsewhere: as the settings say."""

    data: Path
    redis_port: int | None = None
    flower_port: int | None = None
    api_port: int | None = None
    device: str | None = None
    model: str | None = None
    tokenizer: str | None = None
    num_workers: int = 1
    finetune: bool = True
    api: bool = True


@dataclass(frozen=True)
class Addresses:
    """Where to reach what was started; ``--json`` prints it.

    None: ``redis_url`` of one that was there before, ``api_url`` where the API is not started,
    ``flower_password`` where it was set.
    """

    redis_url: str | None
    api_url: str | None
    flower_url: str
    flower_user: str
    flower_password: str | None
    data_folder: str
    model_folder: str


def run_up(options: UpOptions, settings: CliSettings, *, as_json: bool = False) -> int:
    """Run until a signal ends it (returns 0) or a process ends that is not started again (returns 1).

    With ``as_json`` standard output has the addresses as its first line, and standard error what happens.

    :raises LocalStackError: when Redis or a process cannot be started
    """
    console = Console(highlight=False, stderr=as_json)
    workers = worker_names(options.num_workers)
    restarts = Restarts()
    show = prefixed_lines(console, width=max(map(len, (*STYLES, *workers))))

    def sink(name: str, line: str) -> None:
        restarts.note_line(name, line)
        show(name, line)

    check_ports(options)
    with ExitStack() as exits:
        redis: LocalRedis | None = None
        url = settings.redis_url.get_secret_value()
        if not names_redis(settings):
            port = options.redis_port or free_port(REDIS_PORT)
            redis = exits.enter_context(LocalRedis(data=options.data / "redis", port=port, sink=sink))
            url = redis.url
        stack = exits.enter_context(ProcessStack(sink))
        if redis is not None:
            stack.adopt(redis.child)
        choice = model_choice(settings, options.model, options.tokenizer)
        device = {"KRONOS_DEVICE": options.device} if options.device else {}
        folders = shared_folders(options.data, settings)
        common = {"KRONOS_REDIS_URL": url, **choice, **device, **folders}
        for index, name in enumerate(workers):
            start_worker(stack, name, common | worker_share(settings, index, len(workers)), WORKER_GRACE_S)
        if options.finetune:
            start_worker(
                stack,
                "finetune",
                common | {"KRONOS_ROLE": "finetune"} | metrics_share(settings, len(workers)),
                settings.finetune_grace_s + FINETUNE_MARGIN_S,
            )
        flower_url, flower_password = start_flower(stack, options, settings, common)
        api_url = start_api(stack, options, settings, common, console) if options.api else None
        addresses = Addresses(
            redis_url=None if redis is None else url,
            api_url=api_url,
            flower_url=flower_url,
            flower_user=settings.flower_user,
            flower_password=flower_password,
            data_folder=folders["KRONOS_DATA_FOLDER"],
            model_folder=folders["KRONOS_MODEL_FOLDER"],
        )
        if choice.get("KRONOS_MODEL") == BUNDLED_MODEL:
            console.print(
                f"No model is set, so this serves the bundled {BUNDLED_MODEL}; for a published one:\n"
                "  KRONOS_MODEL=NeoQuasar/Kronos-small kronos up"
            )
        if as_json:
            click.echo(json.dumps(asdict(addresses)))
        else:
            tell(addresses, console, finetune=options.finetune)
        try:
            dead = keep_running(stack, restarts, console)
        except KeyboardInterrupt:
            console.print("Stopping; running jobs are finished first. Ctrl-C again ends at once.")
            return 0
        console.print(f"{dead.name} ended with status {dead.exit_status}; stopping the others.")
        return 1


def check_ports(options: UpOptions) -> None:
    """Raises LocalStackError where a port that was asked for is taken: another's would be told as ours."""
    ports = {"--api-port": options.api_port if options.api else None, "--flower-port": options.flower_port}
    for option, port in ports.items():
        if port is not None and free_port(port) != port:
            raise LocalStackError(f"port {port} is taken: give {option} another, or leave it out")


def tell(addresses: Addresses, console: Console, *, finetune: bool) -> None:
    """The addresses, for people."""
    lines = []
    if addresses.redis_url is not None:
        lines += ["For apps and for kronos status:", f"  export KRONOS_REDIS_URL={addresses.redis_url}"]
    if finetune:
        lines.append(
            f"Candles for finetuning: {addresses.data_folder}, trained models: {addresses.model_folder}"
        )
    if addresses.api_url is not None:
        lines.append(f"API and page: {addresses.api_url}")
    password = addresses.flower_password
    shown = "" if password is None else f", password {password}"
    lines.append(f"Flower: {addresses.flower_url}, user {addresses.flower_user}{shown}")
    console.print("\n".join(lines) + "\n", soft_wrap=True)


def keep_running(stack: ProcessStack, restarts: Restarts, console: Console) -> ChildProcess:
    """Start crashed processes again; returns the first that ended for good.

    :raises KeyboardInterrupt: when the end is asked for by a signal
    :raises LocalStackError: when one cannot be started again
    """
    while True:
        dead = stack.wait()
        status = dead.exit_status
        assert status is not None, "it has ended"
        if not stack.can_restart(dead) or not restarts.allow(dead.name, status):
            return dead
        console.print(
            f"{dead.name} ended with status {status}; it is started again, "
            f"at most {MAX_RESTARTS} times in {WINDOW_S / 60:g} minutes."
        )
        stack.restart(dead)


def start_worker(stack: ProcessStack, name: str, variables: Mapping[str, str], grace_s: int) -> None:
    """A worker; which role it has, the variables say."""
    command = own_command("worker")
    stack.start(name, command, env=own_environment(variables), grace_s=grace_s, group="workers")


def start_flower(
    stack: ProcessStack, options: UpOptions, settings: CliSettings, common: Mapping[str, str]
) -> tuple[str, str | None]:
    """Flower; returns its address, and the password where it was made up here."""
    port = options.flower_port or free_port(FLOWER_PORT)
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
    options: UpOptions,
    settings: CliSettings,
    common: Mapping[str, str],
    console: Console,
) -> str | None:
    """The HTTP API and its page; returns its address, or None after saying why there is none."""
    missing = [name for name in API_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        brings = 'pip install ".[api]" in the checkout brings them'
        console.print(f"No API and page: {', '.join(missing)} not installed; {brings}", soft_wrap=True)
        return None
    port = options.api_port or free_port(settings.api_port)
    command = module_command("api_stub")
    stack.start("api", command, env=own_environment({**common, "KRONOS_API_PORT": str(port)}))
    return f"http://{settings.api_host}:{port}"


def shared_folders(data: Path, settings: CliSettings) -> dict[str, str]:
    """The folders of candles and of trained models that all processes share: as set, else below ``data``.

    Raises LocalStackError where one cannot be made.
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
    """What the lines of each worker's log begin with."""
    if num_workers == 1:
        return ["worker"]
    return [f"worker-{number}" for number in range(1, num_workers + 1)]


def worker_share(settings: CliSettings, index: int, num_workers: int) -> dict[str, str]:
    """The variables in which one of several workers on this machine differs from a worker alone."""
    share = metrics_share(settings, index)
    if num_workers > 1 and settings.threads is None:
        share["KRONOS_THREADS"] = str(max(1, num_cores() // num_workers))
    return share


def metrics_share(settings: CliSettings, index: int) -> dict[str, str]:
    """A port for metrics of its own, where they are served."""
    return (
        {} if settings.metrics_port is None else {"KRONOS_METRICS_PORT": str(settings.metrics_port + index)}
    )


def prefixed_lines(console: Console, width: int) -> LineSink:
    """A sink that prints each line behind its process's name."""

    def show(name: str, line: str) -> None:
        prefix = Text(f"{name:<{width}} | ", style=STYLES.get(name.partition("-")[0], ""))
        # Not Text.from_ansi or markup: a log line is printed as it came.
        console.print(prefix + Text(line), soft_wrap=True)

    return show
