"""The command line. Commands import what they need when they run, so that none pays for another.

The larger ones are in ``kronos_cli/commands``, one each file.
"""

import os
from importlib.util import find_spec
from pathlib import Path

import click

from kronos_cli.commands.api import api
from kronos_cli.commands.check import check, healthcheck
from kronos_cli.commands.completion import completion
from kronos_cli.commands.devices import devices
from kronos_cli.commands.finetune import finetune
from kronos_cli.commands.forecast import forecast
from kronos_cli.commands.models import models
from kronos_cli.commands.one_line_errors import OneLineErrors
from kronos_cli.commands.queues import queues
from kronos_cli.commands.status import status
from kronos_cli.commands.up import up
from kronos_cli.settings import get_settings

DEVICE_HELP = "auto, cpu, cuda, cuda:N or mps; overrides KRONOS_DEVICE."
FLOWER_COLUMNS = "name,kwargs,state,received,runtime,worker,uuid"


@click.group(
    cls=OneLineErrors, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
def cli() -> None:
    """Kronos forecasts as jobs on Redis.

    Settings are environment variables that begin with KRONOS_; every command reads KRONOS_REDIS_URL.
    """


def run_celery(arguments: list[str]) -> None:
    """What ``celery -A worker.app …`` does, its exit status included, which ``app.worker_main`` drops."""
    from celery.bin.celery import celery

    celery(args=["--app", "worker.app", *arguments], prog_name="celery", auto_envvar_prefix="CELERY")


@cli.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--role", type=click.Choice(["forecast", "finetune"]),
    help="What the worker does; overrides KRONOS_ROLE.  [default: forecast]",
)  # fmt: skip
@click.option("--pool", type=click.Choice(["threads", "prefork", "solo"]), help="How jobs run side by side.")
@click.option("--concurrency", type=click.IntRange(min=1), help="Jobs taken at once.")
@click.option("--device", help=DEVICE_HELP)
@click.option("--loglevel", default="INFO", show_default=True)
@click.argument("celery_arguments", nargs=-1, type=click.UNPROCESSED)
def worker(
    role: str | None,
    pool: str | None,
    concurrency: int | None,
    device: str | None,
    loglevel: str,
    celery_arguments: tuple[str, ...],
) -> None:
    """Run a worker: load the model once, take jobs from the queue of its device.

    With `--role finetune` it trains models instead, one at a time, and registers them in KRONOS_MODEL_FOLDER.
    Further arguments go to `celery worker`.
    """
    if role is not None:
        os.environ["KRONOS_ROLE"] = role
    if device is not None:
        # Before the settings are read, and for children of a prefork pool as well.
        os.environ["KRONOS_DEVICE"] = device
    get_settings()  # what cannot be read ends here with one line, in Celery with a traceback
    arguments = ["worker", "--loglevel", loglevel]
    if pool is not None:
        arguments += ["--pool", pool]
    if concurrency is not None:
        arguments += ["--concurrency", str(concurrency)]
    run_celery([*arguments, *celery_arguments])


@cli.command()
@click.option("--address", default="127.0.0.1", show_default=True, help="Where it listens.")
@click.option("--port", default=5555, show_default=True, type=click.IntRange(1, 65535))
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
    options = [f"--tasks-columns={FLOWER_COLUMNS}", "--purge-offline-workers=600"]
    run_celery(["flower", f"--address={address}", f"--port={port}", *options])


@cli.command()
@click.option(
    "--csv", "csv_file", type=click.Path(path_type=Path), help="Candles instead of the bundled ones."
)
@click.option(
    "--lookback", type=click.IntRange(min=1), help="Last bars used; 400, or what the model was trained on."
)
@click.option("--model", help="Hub id, folder or bundled name; overrides KRONOS_MODEL.")
@click.option("--tokenizer", help="Likewise, for KRONOS_TOKENIZER.")
@click.option("--device", help=DEVICE_HELP)
@click.option("--pred-len", default=48, show_default=True, type=click.IntRange(min=1), help="Bars ahead.")
@click.option("--samples", default=10, show_default=True, type=click.IntRange(min=1), help="Sample paths.")
@click.option("--seed", default=7, show_default=True, type=click.IntRange(min=0))
@click.option(
    "--output", type=click.Path(path_type=Path), help="The chart; output/forecast.png if not given."
)
@click.option("--json", "as_json", is_flag=True, help="The forecast as JSON; what happens goes to stderr.")
def demo(
    csv_file: Path | None,
    lookback: int | None,
    model: str | None,
    tokenizer: str | None,
    device: str | None,
    pred_len: int,
    samples: int,
    seed: int,
    output: Path | None,
    as_json: bool,
) -> None:
    """Make one forecast, from an empty machine to a chart: Redis, worker, job, result.

    With KRONOS_REDIS_URL set, that Redis is used and none is started. Nothing is left running.
    """
    from kronos_cli.demo import DemoOptions, run_demo

    options = DemoOptions(csv_file, lookback, model, tokenizer, device, pred_len, samples, seed, output)
    raise SystemExit(run_demo(options, get_settings(), as_json=as_json))


for command in (api, check, completion, devices, finetune, forecast, healthcheck, models, queues, status, up):
    cli.add_command(command)
