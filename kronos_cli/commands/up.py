"""``kronos up``: Redis, workers, API and Flower on one machine, with their logs, until Ctrl-C."""

import json
import os
import shlex
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.text import Text

from kronos_cli.commands import options
from kronos_cli.settings import get_settings
from kronos_cli.stack import services
from kronos_cli.stack.ports import LOOPBACK, free_port, why_not_free
from kronos_cli.stack.processes import ProcessStack
from kronos_cli.stack.restarts import MAX_RESTARTS, WINDOW_S, Restarts
from kronos_cli.stack.services import model_choice, own_command
from kronos_client.settings import RETIRED
from kronos_model.checkpoints.names import BUNDLED_MODEL
from kronos_model.processes.children import ChildProcess, LineSink, LocalStackError

PORT: Final = click.IntRange(1, 65535)
REDIS_PORT: Final = 6379
DRAIN_TIMEOUT_S: Final = 4.0
"""Seconds in which running forecasts may end, unless the settings say otherwise."""
FINETUNE_GRACE_S: Final = 5
"""Seconds in which training may save its state, unless the settings say otherwise."""
MARGIN_S: Final = 3
"""Added to both for the rest of a worker's shutdown. Then it is killed."""
STYLES: Final = {"redis": "red", "worker": "cyan", "finetune": "blue", "flower": "magenta", "api": "green"}


@click.command()
@click.option(
    "--data", type=options.PATH, default=Path("output"), show_default=True,
    help="Folder of jobs (redis/), candles for finetuning (data/) and trained models (models/).",
)  # fmt: skip
@click.option("--redis-port", type=PORT, help="Default: 6379, or a free port if that is in use.")
@click.option("--flower-port", type=PORT, help="Default: 5555, or a free port if that is in use.")
@click.option("--api-port", type=PORT, help="Default: KRONOS_API_PORT, or a free port if that is in use.")
@click.option(
    "--workers", "num_workers", default=1, show_default=True, type=options.COUNT,
    help="Number of forecast worker processes. They share the cores.",
)  # fmt: skip
@click.option("--finetune/--no-finetune", default=True, show_default=True, help="Run a finetuning worker.")
@click.option("--api/--no-api", default=True, show_default=True, help="Run the HTTP API and its page.")
@options.device
@options.model
@options.tokenizer
@click.option("--json", "as_json", is_flag=True, help="Print the addresses as JSON; logs go to stderr.")
@click.option(
    "--quiet", is_flag=True, help="Print only the addresses, as NAME=VALUE lines; logs go to stderr."
)
def up(
    data: Path, redis_port: int | None, flower_port: int | None, api_port: int | None, num_workers: int,
    finetune: bool, api: bool, device: str | None, model: str | None, tokenizer: str | None, as_json: bool,
    quiet: bool,
) -> None:  # fmt: skip
    """Run Redis, workers, the API with its page, and Flower on this machine until Ctrl-C.

    If KRONOS_REDIS_URL is set, the command uses that Redis and starts none. Without KRONOS_MODEL it serves
    the bundled model. A process that crashes is restarted, at most 5 times in 10 minutes.
    """
    console, settings = Console(highlight=False, stderr=as_json or quiet), get_settings()
    workers = services.worker_names(num_workers)
    restarts = Restarts()
    show = prefixed_lines(console, width=max(map(len, (*STYLES, *workers))))
    when_ready: list[str] = []  # printed once, by the thread that takes it

    def sink(name: str, line: str) -> None:
        restarts.note_line(name, line)
        show(name, line)
        if when_ready and restarts.are_ready([child.name for child in stack.children]):
            with suppress(IndexError):
                console.print(when_ready.pop(), soft_wrap=True)

    for option, host, port in (
        ("--api-port", settings.api_host, api_port if api else None),
        ("--flower-port", LOOPBACK, flower_port),
    ):
        if port is not None and (reason := why_not_free(host, port)):  # another service would answer there
            text = f"port {port} of {host} cannot be used ({reason}): give {option} another port"
            raise LocalStackError(f"{text}, or leave it out")
    with ExitStack() as exits:
        stack = ProcessStack(sink)
        port = redis_port or free_port(REDIS_PORT)
        redis = services.start_redis(exits, stack, settings, data=data / "redis", port=port, sink=sink)
        choice = model_choice(settings, model, tokenizer)
        folders = services.shared_folders(data, settings)
        url = settings.redis_url.get_secret_value() if redis is None else redis.url
        common = {"KRONOS_REDIS_URL": url, **choice, **folders}
        if device:
            common["KRONOS_DEVICE"] = device
        drain_s = DRAIN_TIMEOUT_S if settings.drain_timeout_s is None else settings.drain_timeout_s
        common["KRONOS_DRAIN_TIMEOUT_S"] = str(drain_s)
        for index, name in enumerate(workers):
            share = services.worker_share(settings, index, len(workers))
            stack.start(name, own_command("worker"), common | share, grace_s=int(drain_s) + MARGIN_S)
        if finetune:
            is_set = "finetune_grace_s" in settings.model_fields_set
            save_s = settings.finetune_grace_s if is_set else FINETUNE_GRACE_S
            own = {"KRONOS_ROLE": "finetune", "KRONOS_FINETUNE_GRACE_S": str(save_s)}
            own |= services.worker_share(settings, len(workers), 1)
            stack.start("finetune", own_command("worker"), common | own, grace_s=save_s + MARGIN_S)
        flower_url, password = services.start_flower(stack, flower_port, settings, common)
        addresses = {
            "redis_url": None if redis is None else url,  # the user's own Redis is not repeated
            "model_folder": folders["KRONOS_MODEL_FOLDER"],
            "api_url": services.start_api(stack, api_port, settings, common, console) if api else None,
            "flower_url": flower_url,
            "flower_user": settings.flower_user,
            "flower_password": password,  # None if the settings have it
            "data_folder": folders["KRONOS_DATA_FOLDER"],
        }
        if choice.get("KRONOS_MODEL") == BUNDLED_MODEL and not quiet:
            console.print(
                f"No model is set, so workers serve the bundled {BUNDLED_MODEL}. For a published model:\n"
                "  export KRONOS_MODEL=small",
                soft_wrap=True,
            )
        if as_json or quiet:
            click.echo(json.dumps(addresses) if as_json else "\n".join(address_variables(addresses)))
        else:
            has_keys = any(os.environ.get(f"KRONOS_API_KEYS{end}") for end in ("", "_FILE"))
            text = "\n".join(address_lines(addresses, finetune=finetune, has_keys=has_keys)) + "\n"
            console.print(f"Starting:\n{text}", soft_wrap=True)
            when_ready.append(f"\nEverything is ready; Ctrl-C ends it:\n{text}")
        try:
            dead = keep_running(stack, restarts, console)
        except KeyboardInterrupt:
            text = f"Stopping. Forecasts that take more than {drain_s:g} s go back to the queue, and training"
            console.print(f"{text} saves its state. Ctrl-C again ends at once.", soft_wrap=True)
            return
        console.print(f"{dead.name} ended with status {dead.exit_status} (see its log); stopping the others.")
        raise SystemExit(1)


def address_lines(addresses: Mapping[str, str | None], *, finetune: bool, has_keys: bool) -> list[str]:
    """Each address with what is there, and how to sign in."""
    lines = []
    if addresses["redis_url"] is not None:
        lines += [
            f"Redis: {addresses['redis_url']} holds the jobs. Apps and other commands find it by:",
            *(f"  export {line}" for line in address_variables(addresses)[:2]),
        ]
    if finetune:
        data, models = addresses["data_folder"], addresses["model_folder"]
        lines.append(f"Candles for finetuning: {data}, trained models: {models}")
    if (url := addresses["api_url"]) is not None:
        sign_in = "a key of KRONOS_API_KEYS" if has_keys else "no key"
        lines.append(f"Page: {url} forecasts files, trains and compares models; it needs {sign_in}")
        lines.append(f"API: {url}/docs describes it; it needs {sign_in}")
    user, password = addresses["flower_user"], addresses["flower_password"]
    sign_in = f"user {user}, password {password or 'that of KRONOS_FLOWER_PASSWORD'}"
    return [*lines, f"Flower: {addresses['flower_url']} shows jobs and workers; {sign_in}"]


def address_variables(addresses: Mapping[str, str | None]) -> list[str]:
    """The addresses as lines that a shell reads. A command would warn of Flower's user, a retired setting."""
    given = {name: text for name, text in addresses.items() if text and name not in RETIRED}
    return [f"KRONOS_{name.upper()}={shlex.quote(text)}" for name, text in given.items()]


def keep_running(stack: ProcessStack, restarts: Restarts, console: Console) -> ChildProcess:
    """Restart crashed processes. Returns the first process that is not restarted.

    Raises KeyboardInterrupt after a signal, and LocalStackError if a process cannot be restarted.
    """
    while True:
        dead = stack.wait()
        status = dead.exit_status
        assert status is not None, "it has ended"
        if not restarts.allow(dead.name, status):
            return dead
        console.print(
            f"{dead.name} ended with status {status}; it is started again, "
            f"at most {MAX_RESTARTS} times in {WINDOW_S / 60:g} minutes."
        )
        stack.restart(dead)


def prefixed_lines(console: Console, width: int) -> LineSink:
    """A sink that prints each line after the name of its process."""

    def show(name: str, line: str) -> None:
        prefix = Text(f"{name:<{width}} | ", style=STYLES.get(name.partition("-")[0], ""))
        # No Text.from_ansi and no markup: a log line is printed unchanged.
        console.print(prefix + Text(line), soft_wrap=True)

    return show
