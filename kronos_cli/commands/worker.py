"""``kronos worker``."""

import os
from typing import Any

import click

from kronos_cli.commands import options
from kronos_cli.settings import get_settings


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--role", type=click.Choice(["forecast", "finetune"]),
    help="What the worker does; overrides KRONOS_ROLE.  [default: forecast]",
)  # fmt: skip
@click.option(
    "--pool", type=click.Choice(["threads", "prefork", "solo"]),
    help="How jobs run in parallel; prefork only on the CPU.  [default: threads]",
)  # fmt: skip
@click.option(
    "--concurrency", type=click.IntRange(min=1),
    help="Number of jobs at once. Default: from KRONOS_MAX_JOBS; with prefork the number of cores.",
)  # fmt: skip
@options.device
@click.option("--loglevel", default="INFO", show_default=True, help="Least severe log lines to show.")
@click.argument("celery_arguments", nargs=-1, type=click.UNPROCESSED)
def worker(role: str | None, device: str | None, celery_arguments: tuple[str, ...], **given: Any) -> None:
    """Run a worker: load the model once, take jobs from the queue of its device.

    With `--role finetune` it trains models and runs backtests instead, one job at a time. Models and reports
    are kept in KRONOS_MODEL_FOLDER.
    Other arguments are passed to `celery worker`.
    """
    # Set before the settings are read. The children of a prefork pool inherit them.
    for name, value in (("KRONOS_ROLE", role), ("KRONOS_DEVICE", device)):
        if value is not None:
            os.environ[name] = value
    get_settings()  # an invalid setting ends here with one line; in Celery it would be a traceback
    own_arguments = [f"--{name}={value}" for name, value in given.items() if value is not None]
    run_celery(["worker", *own_arguments, *celery_arguments])


def run_celery(arguments: list[str]) -> None:
    """Run ``celery -A worker.app …`` and exit with its status, which ``app.worker_main`` drops."""
    from celery.bin.celery import celery  # takes a second

    celery(args=["--app", "worker.app", *arguments], prog_name="celery", auto_envvar_prefix="CELERY")
