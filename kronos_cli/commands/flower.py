"""``kronos flower``."""

import os
from importlib.util import find_spec

import click

from kronos_cli.commands.worker import run_celery
from kronos_cli.settings import get_settings
from kronos_cli.stack.processes import FLOWER_PORT

COLUMNS = "name,uuid,kwargs,state,worker,runtime,received"


@click.command()
@click.option("--address", default="127.0.0.1", show_default=True, help="Address to serve.")
@click.option(
    "--port", default=FLOWER_PORT, show_default=True, type=click.IntRange(1, 65535), help="Its port."
)
def flower(address: str, port: int) -> None:
    """Run Flower, a web page that shows workers and jobs.

    Users log in as kronos with KRONOS_FLOWER_PASSWORD, which has no default.
    """
    settings = get_settings()
    if find_spec("flower") is None:  # otherwise Celery reports an unknown command
        raise ModuleNotFoundError("No module named 'flower'", name="flower")
    if settings.flower_password is None:
        raise click.ClickException(
            "KRONOS_FLOWER_PASSWORD is not set: set it, because Flower shows all jobs and can revoke them"
        )
    from worker.app import app  # takes a second

    app.conf.imports = ()  # workers' tasks need torch, and Flower needs no task
    # In Flower's own variable: every user of the machine can read a command line.
    os.environ["FLOWER_BASIC_AUTH"] = f"{settings.flower_user}:{settings.flower_password.get_secret_value()}"
    # Each start of a worker has a new name. Old names are removed after 600 s.
    options = [f"--tasks-columns={COLUMNS}", "--purge-offline-workers=600"]
    run_celery(["flower", f"--address={address}", f"--port={port}", *options])
