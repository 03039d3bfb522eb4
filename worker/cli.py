"""The command line. Commands import what they need when they run, so that none pays for another."""

import json
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from redis.exceptions import RedisError

from kronos_model.errors import KronosError
from worker.children import LocalStackError
from worker.contract.errors import JobError
from worker.settings import SettingsError, get_settings

if TYPE_CHECKING:
    from worker.routing import Status

DEVICE_HELP = "auto, cpu, cuda, cuda:N or mps; overrides KRONOS_DEVICE."


class OneLineErrors(click.Group):
    """Errors that have a message for the user end the command with that line, not with a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except RedisError as error:
            raise click.ClickException(
                f"Redis (KRONOS_REDIS_URL) does not answer as needed: {error}"
            ) from error
        except (KronosError, JobError, LocalStackError, SettingsError) as error:
            raise click.ClickException(str(error)) from error


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
@click.option("--pool", type=click.Choice(["threads", "prefork", "solo"]), help="How jobs run side by side.")
@click.option("--concurrency", type=click.IntRange(min=1), help="Jobs taken at once.")
@click.option("--device", help=DEVICE_HELP)
@click.option("--loglevel", default="INFO", show_default=True)
@click.argument("celery_arguments", nargs=-1, type=click.UNPROCESSED)
def worker(
    pool: str | None,
    concurrency: int | None,
    device: str | None,
    loglevel: str,
    celery_arguments: tuple[str, ...],
) -> None:
    """Run a worker: load the model once, take jobs from the queue of its device.

    Further arguments go to `celery worker`.
    """
    if device is not None:
        # Before the settings are read, and for children of a prefork pool as well.
        os.environ["KRONOS_DEVICE"] = device
    if not {"--hostname", "-n"} & {argument.partition("=")[0] for argument in celery_arguments}:
        # Two workers on one machine need two names; Celery's default is the same for both.
        celery_arguments = ("--hostname", f"kronos-{os.getpid()}@%h", *celery_arguments)
    get_settings()  # what cannot be read ends here with one line, in Celery with a traceback
    arguments = ["worker", "--loglevel", loglevel]
    if pool is not None:
        arguments += ["--pool", pool]
    if concurrency is not None:
        arguments += ["--concurrency", str(concurrency)]
    run_celery([*arguments, *celery_arguments])


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="The whole announcements, as a JSON list.")
def status(as_json: bool) -> None:
    """Show the workers that are alive, busy and loading ones included."""
    workers = _announced_workers()
    if as_json:
        click.echo(json.dumps(workers, indent=2))
        return
    from rich.console import Console

    from worker.status_table import status_table

    if not workers:
        raise click.ClickException("no worker is alive on this Redis; start one with: kronos worker")
    Console().print(status_table(workers))


@cli.command()
def healthcheck() -> None:
    """Exit with 0 when a worker on this host is ready, else with 1 and the reason."""
    host = platform.node()
    here = [worker for worker in _announced_workers() if worker["host"] == host]
    if not any(worker["state"] == "ready" for worker in here):
        states = ", ".join(f"{worker['node']} is {worker['state']}" for worker in here)
        raise click.ClickException(states or f"no worker on {host} has announced itself")


@cli.command()
@click.option("--address", default="127.0.0.1", show_default=True, help="Where it listens.")
@click.option("--port", default=5555, show_default=True, type=click.IntRange(1, 65535))
def flower(address: str, port: int) -> None:
    """Run Flower, the web page on queues and jobs, behind KRONOS_FLOWER_USER and KRONOS_FLOWER_PASSWORD."""
    settings = get_settings()
    if settings.flower_password is None:
        raise click.ClickException("set KRONOS_FLOWER_PASSWORD: Flower shows all jobs and can revoke them")
    # By Flower's own variable, since a command line shows the password to everybody on the machine.
    os.environ["FLOWER_BASIC_AUTH"] = f"{settings.flower_user}:{settings.flower_password.get_secret_value()}"
    run_celery(["flower", f"--address={address}", f"--port={port}"])


@cli.command()
@click.option(
    "--data", type=click.Path(path_type=Path), default=Path("output/redis"), show_default=True,
    help="Where the Redis that this starts keeps its jobs.",
)  # fmt: skip
@click.option("--redis-port", type=click.IntRange(1, 65535), help="6379, or a free one if that is taken.")
@click.option("--flower-port", type=click.IntRange(1, 65535), help="5555, or a free one if that is taken.")
@click.option(
    "--workers", "num_workers", default=1, show_default=True, type=click.IntRange(min=1),
    help="Worker processes, which share the cores.",
)  # fmt: skip
@click.option("--device", help=DEVICE_HELP)
@click.option("--model", help="Hub id, folder or bundled name; overrides KRONOS_MODEL.")
@click.option("--tokenizer", help="Likewise, for KRONOS_TOKENIZER.")
def up(
    data: Path,
    redis_port: int | None,
    flower_port: int | None,
    num_workers: int,
    device: str | None,
    model: str | None,
    tokenizer: str | None,
) -> None:
    """Run Redis, workers and Flower on this machine until Ctrl-C.

    With KRONOS_REDIS_URL set, that Redis is used and none is started. Without KRONOS_MODEL it serves the
    bundled checkpoint.
    """
    from worker.up import UpOptions, run_up

    options = UpOptions(data, redis_port, flower_port, device, model, tokenizer, num_workers)
    raise SystemExit(run_up(options, get_settings()))


@cli.command()
@click.option(
    "--csv", "csv_file", type=click.Path(path_type=Path), help="Candles instead of the bundled ones."
)
@click.option(
    "--lookback", default=400, show_default=True, type=click.IntRange(min=1), help="Last bars used."
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
def demo(
    csv_file: Path | None,
    lookback: int,
    model: str | None,
    tokenizer: str | None,
    device: str | None,
    pred_len: int,
    samples: int,
    seed: int,
    output: Path | None,
) -> None:
    """Make one forecast, from an empty machine to a chart: Redis, worker, job, result.

    With KRONOS_REDIS_URL set, that Redis is used and none is started. Nothing is left running.
    """
    from worker.demo import DemoOptions, run_demo

    options = DemoOptions(csv_file, lookback, model, tokenizer, device, pred_len, samples, seed, output)
    raise SystemExit(run_demo(options, get_settings()))


def _announced_workers() -> "list[Status]":
    from worker.connection import connect
    from worker.routing import live_workers

    with connect(get_settings().redis_url.get_secret_value()) as redis:
        return live_workers(redis)
