"""Redis, workers and Flower on one machine, their logs side by side, until Ctrl-C."""

import os
import secrets
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from worker.children import LineSink, ProcessStack
from worker.cores import num_cores
from worker.local import LocalRedis, free_port
from worker.own_commands import (
    BUNDLED_MODEL,
    model_choice,
    names_redis,
    own_command,
    own_environment,
    own_node,
)
from worker.settings import Settings

REDIS_PORT = 6379
FLOWER_PORT = 5555
WORKER_GRACE_S = 60
STYLES = {"redis": "red", "worker": "cyan", "flower": "magenta"}


@dataclass(frozen=True)
class UpOptions:
    """``data`` is where the Redis that ``up`` starts keeps its jobs; None elsewhere: as the settings say."""

    data: Path
    redis_port: int | None = None
    flower_port: int | None = None
    device: str | None = None
    model: str | None = None
    tokenizer: str | None = None
    num_workers: int = 1


def run_up(options: UpOptions, settings: Settings) -> int:
    """Run until a signal ends it (returns 0) or one of the processes dies (returns 1).

    :raises LocalStackError: when Redis or a process cannot be started
    """
    console = Console(highlight=False)
    workers = worker_names(options.num_workers)
    sink = prefixed_lines(console, width=max(map(len, (*STYLES, *workers))))
    with ExitStack() as exits:
        redis: LocalRedis | None = None
        url = settings.redis_url.get_secret_value()
        if not names_redis(settings):
            port = options.redis_port or free_port(REDIS_PORT)
            redis = exits.enter_context(LocalRedis(data=options.data, port=port, sink=sink))
            url = redis.url
        stack = exits.enter_context(ProcessStack(sink))
        if redis is not None:
            stack.adopt(redis.child)
        choice = model_choice(settings, options.model, options.tokenizer)
        device = {"KRONOS_DEVICE": options.device} if options.device else {}
        environment = own_environment({"KRONOS_REDIS_URL": url, **choice, **device})
        for index, name in enumerate(workers):
            stack.start(
                name,
                own_command("worker", "--hostname", own_node(f"kronos-{os.getpid()}-{index + 1}")),
                env=environment | worker_share(settings, index, len(workers)),
                grace_s=WORKER_GRACE_S,
                group="workers",
            )

        flower_port = options.flower_port or free_port(FLOWER_PORT)
        given = settings.flower_password
        password = given.get_secret_value() if given is not None else secrets.token_urlsafe(12)
        stack.start(
            "flower",
            own_command("flower", "--port", str(flower_port)),
            env={**environment, "KRONOS_FLOWER_PASSWORD": password},
        )
        if choice.get("KRONOS_MODEL") == BUNDLED_MODEL:
            console.print(
                f"No model is set, so this serves the bundled {BUNDLED_MODEL}; for a published one:\n"
                "  KRONOS_MODEL=NeoQuasar/Kronos-small kronos up"
            )
        if redis is not None:
            console.print(f"For apps and for kronos status:\n  export KRONOS_REDIS_URL={url}", soft_wrap=True)
        shown = "" if given is not None else f", password {password}"
        console.print(f"Flower: http://127.0.0.1:{flower_port}, user {settings.flower_user}{shown}\n")
        try:
            dead = stack.wait()
        except KeyboardInterrupt:
            console.print("Stopping; running jobs are finished first. Ctrl-C again ends at once.")
            return 0
        console.print(f"{dead.name} ended with status {dead.exit_status}; stopping the others.")
        return 1


def worker_names(num_workers: int) -> list[str]:
    """What the lines of each worker's log begin with."""
    if num_workers == 1:
        return ["worker"]
    return [f"worker-{number}" for number in range(1, num_workers + 1)]


def worker_share(settings: Settings, index: int, num_workers: int) -> dict[str, str]:
    """The variables in which one of several workers on this machine differs from a worker alone."""
    share: dict[str, str] = {}
    if num_workers > 1 and settings.threads is None:
        share["KRONOS_THREADS"] = str(max(1, num_cores() // num_workers))
    if settings.metrics_port is not None:
        share["KRONOS_METRICS_PORT"] = str(settings.metrics_port + index)
    return share


def prefixed_lines(console: Console, width: int) -> LineSink:
    """A sink that prints each line behind its process's name."""

    def show(name: str, line: str) -> None:
        prefix = Text(f"{name:<{width}} | ", style=STYLES.get(name.partition("-")[0], ""))
        # Not Text.from_ansi or markup: a log line is printed as it came.
        console.print(prefix + Text(line), soft_wrap=True)

    return show
