"""``kronos flower``."""

import os
from importlib.util import find_spec

import click

from kronos_cli.commands.worker import run_celery
from kronos_cli.settings import get_settings
from kronos_cli.stack.ports import FLOWER_PORT

COLUMNS = "name,kwargs,state,received,runtime,worker,uuid"


@click.command()
@click.option("--address", default="127.0.0.1", show_default=True, help="Where it listens.")
@click.option("--port", default=FLOWER_PORT, show_default=True, type=click.IntRange(1, 65535))
def flower(address: str, port: int) -> None:
    """Run Flower, the web page on queues and jobs, behind KRONOS_FLOWER_USER and KRONOS_FLOWER_PASSWORD."""
    settings = get_settings()
    if find_spec("flower") is None:  # else Celery says that it knows no such command
        raise ModuleNotFoundError("No module named 'flower'", name="flower")
    if settings.flower_password is None:
        raise click.ClickException("set KRONOS_FLOWER_PASSWORD: Flower shows all jobs and can revoke them")
    # By Flower's own variable, since a command line shows the password to everybody on the machine.
    os.environ["FLOWER_BASIC_AUTH"] = f"{settings.flower_user}:{settings.flower_password.get_secret_value()}"
    # Names of workers are new with every start: those that are gone are not listed for ever.
    options = [f"--tasks-columns={COLUMNS}", "--purge-offline-workers=600"]
    run_celery(["flower", f"--address={address}", f"--port={port}", *options])
