"""``kronos status``."""

import json
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Final

import click
from redis import Redis
from redis.exceptions import RedisError
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from kronos_cli.one_line_errors import error_as_json
from kronos_cli.settings import get_settings
from kronos_cli.terminal import duration, show, simple_table
from kronos_client.contract.worker_status import (
    AnyWorkerStatus,
    FinetuneWorkerStatus,
    ForecastWorkerStatus,
    TrainingStatus,
)
from kronos_client.redis.connection import connect
from kronos_client.redis.routing import live_workers

NO_WORKER = "no worker is alive on this Redis; start one with: kronos worker"
MAX_JOBS_SHOWN: Final = 5
"""Running jobs that are listed per worker."""
STATE_STYLES: Final = {"ready": "green", "loading": "yellow", "draining": "magenta"}


@click.command()
@click.option("--watch", is_flag=True, help="Repeat until Ctrl-C; with --json print one line each time.")
@click.option(
    "--interval", "interval_s", type=click.FloatRange(min=0.1), default=2.0, show_default=True,
    metavar="SECONDS", help="Time between two reads with --watch.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print all fields as a JSON list.")
def status(watch: bool, interval_s: float, as_json: bool) -> None:
    """Show all live workers, also busy and loading ones.

    Exit status: 0, or 1 if no worker is alive. With --watch it is 0, and the command continues during an
    outage of Redis.
    """
    with connect(get_settings().redis_url.get_secret_value()) as redis:
        if watch:
            try:
                _watch(redis, interval_s, as_json=as_json)
            except KeyboardInterrupt:
                return
        workers = live_workers(redis)
    if not workers and not as_json:
        raise click.ClickException(NO_WORKER)
    show([worker.as_json() for worker in workers], status_table(workers), as_json=as_json)
    raise SystemExit(0 if workers else 1)


def _watch(redis: Redis, interval_s: float, *, as_json: bool) -> None:
    """Show the status until KeyboardInterrupt, also during an outage of Redis. A terminal is redrawn."""
    console = Console()
    is_redrawn = console.is_terminal and not as_json
    live = Live(console=console, screen=True, auto_refresh=False) if is_redrawn else None
    with live or nullcontext():
        while True:
            view: RenderableType
            try:
                workers = live_workers(redis)
                data: object = [worker.as_json() for worker in workers]
                view = status_table(workers) if workers else Text(NO_WORKER)
            except RedisError as error:
                data = {"error": error_as_json(error)}
                view = Text(data["error"]["message"], style="red")
            if live is not None:
                live.update(view, refresh=True)
            elif as_json:
                click.echo(json.dumps(data))
            else:
                console.print(view, soft_wrap=isinstance(view, Text), crop=False)
            time.sleep(interval_s)


def status_table(workers: Sequence[AnyWorkerStatus]) -> RenderableType:
    """Two tables with one row per worker: the worker and its load. Below: GPUs, running jobs and warnings.

    Text of announcements is never markup.
    """
    what = simple_table(
        "worker", "state", "device", "engine", "queue", "model", "up",
        names=("worker", "model"), texts=("state", "device", "engine", "queue"),
    )  # fmt: skip
    load = simple_table(
        "worker", "jobs", "failed", "running", "waiting", "slots", "wait", "bars/s", names=("worker",)
    )
    gpus = simple_table("worker", "gpu", "busy", "memory", names=("worker",), texts=("gpu",))
    running = simple_table("worker", "job", "done", "bars", names=("worker", "job"))
    warnings = []
    for worker in workers:
        node, state = Text(worker.node), Text(worker.state, style=STATE_STYLES[worker.state])
        if worker.problem is not None:
            state = Text("not ready", style="red")
            warnings.append(Text(f"{worker.node} is {worker.condition}", style="red"))
        where = Text(worker.device), Text(engines_text(worker)), Text(worker.queue)
        what.add_row(node, state, *where, model_text(worker), duration(worker.uptime_s))
        load.add_row(node, str(worker.jobs_done), str(worker.jobs_failed), *load_cells(worker))
        warnings += [Text(f"{worker.node}: {text}", style="yellow") for text in worker.all_warnings()]
        if isinstance(worker, FinetuneWorkerStatus):
            continue
        if worker.device != "cpu":
            gpus.add_row(node, *gpu_cells(worker))
        shown = worker.jobs_running[:MAX_JOBS_SHOWN]
        for job in shown:
            share = f"{job.bars_done / job.bars_total:.0%}"
            running.add_row(node, Text(job.id), share, f"{job.bars_total:,}")
        if worker.num_jobs_running > len(shown):
            running.add_row(node, Text(f"and {worker.num_jobs_running - len(shown)} more", style="dim"))
    warnings += [Text(text, style="yellow") for text in different_limits(workers)]
    return Group(what, load, *(table for table in (gpus, running) if table.row_count), *warnings)


def different_limits(workers: Sequence[AnyWorkerStatus]) -> list[str]:
    """A warning for each limit that differs among forecast workers: one refuses what another would take."""
    by_name: dict[str, dict[int, str]] = {}
    for worker in workers:
        for name, limit in worker.limits.items() if isinstance(worker, ForecastWorkerStatus) else ():
            by_name.setdefault(name, {}).setdefault(limit, worker.node)
    return [
        f"KRONOS_{name.upper()} is "
        + ", ".join(f"{limit} on {node}" for limit, node in sorted(of_workers.items()))
        + "; give all workers and clients the same: a job above it fails on the one and not on the other"
        for name, of_workers in by_name.items()
        if len(of_workers) > 1
    ]


def gpu_cells(worker: AnyWorkerStatus) -> tuple[str, str, str]:
    """The GPU's product name, its utilisation, and its memory in use by all processes."""
    gpu = worker.device_description
    shown = (gpu.get(name) for name in ("utilisation_percent", "memory_total_bytes", "memory_free_bytes"))
    busy, total, free = (number if isinstance(number, int | float) else None for number in shown)
    memory = (
        "?" if total is None or free is None else f"{(total - free) / 2**30:.0f} of {total / 2**30:.0f} GiB"
    )
    return str(gpu.get("name")), "?" if busy is None else f"{busy:.0f} %", memory


def model_text(worker: AnyWorkerStatus) -> Text:
    """The model's id with the start of its revision, or the running training."""
    if isinstance(worker, FinetuneWorkerStatus):
        return training_text(worker.training)
    model = worker.model
    if model is None:
        return Text("…", style="dim")
    return Text(f"{model.id} @{model.revision[:8]}" if model.revision else model.id)


def engines_text(worker: AnyWorkerStatus) -> str:
    """The engines of a worker's models, each named once."""
    models = () if isinstance(worker, FinetuneWorkerStatus) else worker.models
    return ", ".join(dict.fromkeys(model.engine for model in models if model.engine is not None))


def training_text(training: TrainingStatus | None) -> Text:
    """Text such as "finetuning mine: predictor, epoch 2/10, step 120/1000, loss 5.1000"."""
    if training is None:
        return Text("finetuning, idle", style="dim")
    parts = [training.stage] if training.stage else []
    counts = (("epoch", training.epoch, training.num_epochs), ("step", training.step, training.num_steps))
    parts += [f"{unit} {number}/{total}" for unit, number, total in counts if number is not None]
    if training.loss is not None:
        parts.append(f"loss {training.loss:.4f}")
    return Text(f"finetuning {training.name}: {', '.join(parts) or '…'}")


def load_cells(worker: AnyWorkerStatus) -> tuple[str, ...]:
    """Sample paths running and waiting, slots, mean recent wait for slots, and bars per second."""
    if isinstance(worker, FinetuneWorkerStatus):
        return str(int(worker.training is not None)), "", "1", "", ""
    wait = "" if worker.queue_wait_s is None else f"{worker.queue_wait_s:.1f} s"
    load = map(str, (worker.sequences_running, worker.sequences_waiting, worker.slots))
    return *load, wait, f"{worker.bars_per_s:,.0f}"
