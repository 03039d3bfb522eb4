"""``kronos worker``."""

import logging
import os
from contextlib import suppress
from functools import partial

import click

from kronos_cli.commands import options
from kronos_cli.settings import CliSettings, get_settings

log = logging.getLogger(__name__)

ORPHAN_GRACE_S = 600
"""Seconds in which the workers end if this process is killed."""


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--role", type=click.Choice(["forecast", "finetune"]),
    help="What the worker does; overrides KRONOS_ROLE.  [default: forecast]",
)  # fmt: skip
@click.option(
    "--processes", "num_processes", default=1, show_default=True, type=options.COUNT,
    help="Number of workers, each with a model and its share of the cores.",
)  # fmt: skip
@options.device
@click.option("--loglevel", default="INFO", show_default=True, help="Least severe log lines to show.")
@click.argument("celery_arguments", nargs=-1, type=click.UNPROCESSED)
def worker(
    role: str | None, num_processes: int, device: str | None, loglevel: str, celery_arguments: tuple[str, ...]
) -> None:
    """Run a worker: load the model once, take jobs from the queue of its device.

    With `--role finetune` it trains models and runs backtests instead, one job at a time. Models and reports
    are kept in KRONOS_MODEL_FOLDER.
    Other arguments are passed to `celery worker`. Those that choose its pool (`--pool`, `--concurrency`) have
    no effect.
    """
    # Set before the settings are read. Further processes inherit them.
    for name, value in (("KRONOS_ROLE", role), ("KRONOS_DEVICE", device)):
        if value is not None:
            os.environ[name] = value
    settings = get_settings()  # an invalid setting ends here with one line; in Celery it would be a traceback
    arguments = [f"--loglevel={loglevel}", *celery_arguments]
    if num_processes == 1:
        run_celery(["worker", *arguments])
    elif any(argument.startswith(("-n", "--hostname")) for argument in celery_arguments):
        raise click.UsageError("--hostname: with --processes each worker has a name of its own; leave it out")
    else:
        raise SystemExit(run_several(num_processes, arguments, settings))


def run_celery(arguments: list[str]) -> None:
    """Run ``celery -A worker.app …`` and exit with its status, which ``app.worker_main`` drops."""
    from celery.bin.celery import celery  # takes a second

    celery(args=["--app", "worker.app", *arguments], prog_name="celery", auto_envvar_prefix="CELERY")


def run_several(num_processes: int, arguments: list[str], settings: CliSettings) -> int:
    """Run workers with these arguments that share the cores. Returns their worst exit status."""
    from kronos_cli.stack.restarts import Restarts, WorkerProcesses
    from kronos_cli.stack.services import own_command, worker_names, worker_share
    from kronos_client.logs import log_json
    from kronos_model.processes.children import ChildProcess, own_environment

    is_json, restarts = settings.log_format == "json", Restarts()
    if is_json:
        log_json()

    def show(name: str, line: str) -> None:
        restarts.note_line(name, line)
        with suppress(OSError):  # a full disk: a worker whose lines nobody reads would block
            click.echo(line if is_json else f"{name} | {line}", err=True)

    def start(index: int, name: str) -> ChildProcess:
        share = worker_share(settings, index, num_processes, num_kept_free=0)
        command, environment = own_command("worker", *arguments), own_environment(share)
        return ChildProcess(name, command, env=environment, sink=show, grace_s=ORPHAN_GRACE_S)

    warn_of_shared_gpu(num_processes, settings)
    starts = [partial(start, *given) for given in enumerate(worker_names(num_processes))]
    return WorkerProcesses(starts, restarts).run()


def warn_of_shared_gpu(num_processes: int, settings: CliSettings) -> None:
    """Log one line if the workers would share a GPU. What cannot be tested, they report themselves."""
    from worker.inference.probe import ProbeError, run_probe

    if settings.device == "cpu":
        return
    try:
        (report,) = run_probe([settings.device])["devices"]
    except (ProbeError, ModuleNotFoundError):
        return
    if (device := report.get("device", "cpu")) != "cpu":
        remedy = "give each a part of its memory by KRONOS_MEMORY_MB, or start one worker for each GPU"
        log.warning("all %d workers share %s: %s", num_processes, device, remedy)
