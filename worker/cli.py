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
) -> None:
    """Make one forecast, from an empty machine to a chart: Redis, worker, job, result.

    With KRONOS_REDIS_URL set, that Redis is used and none is started. Nothing is left running.
    """
    from worker.demo import DemoOptions, run_demo

    options = DemoOptions(csv_file, lookback, model, tokenizer, device, pred_len, samples, seed, output)
    raise SystemExit(run_demo(options, get_settings()))


@cli.command()
@click.option("--config", type=click.Path(path_type=Path), help="What to do, as YAML or JSON.")
@click.option(
    "--set", "overrides", multiple=True, metavar="FIELD=VALUE",
    help="A field of the config, such as predictor.epochs=3; may be repeated.",
)  # fmt: skip
@click.option(
    "--data", multiple=True, metavar="PATH",
    help="CSV or Parquet files or folders, overriding data.path; of a job, below the workers' "
    "KRONOS_DATA_FOLDER. May be repeated.",
)  # fmt: skip
@click.option("--device", help="auto, cpu, cuda, cuda:N or mps; overrides training_device.")
@click.option("--output", type=click.Path(path_type=Path), help="Folder of a run that is not a job.")
@click.option(
    "--enqueue", "name", metavar="NAME",
    help="Put it on Redis as a job; the model is registered as NAME.",
)  # fmt: skip
@click.option(
    "--inline", multiple=True, type=click.Path(path_type=Path), metavar="FILE.csv",
    help="Candles that the job carries itself, one instrument a file. May be repeated.",
)  # fmt: skip
@click.option("--priority", type=click.Choice(["high", "normal", "low"]), default="normal", show_default=True)
@click.option("--no-fallback", is_flag=True, help="Fail rather than train on the CPU for want of a GPU.")
@click.option("--deadline", "deadline_s", type=float, metavar="SECONDS", help="When the job is to be done.")
@click.option("--id", "job_id", help="The job's id; made up where left out.")
@click.option(
    "--watch", is_flag=False, flag_value="", metavar="[ID]",
    help="Follow a job: the one that is enqueued, or another by its id.",
)  # fmt: skip
@click.option("--cancel", metavar="ID", help="End a job; its best checkpoint is kept.")
@click.option("--json", "as_json", is_flag=True, help="Follow by JSON lines.")
def finetune(
    name: str | None, watch: str | None, cancel: str | None, as_json: bool, no_fallback: bool, **given: Any
) -> None:
    """Train a model on your own candles: here, or as a job for `kronos worker --role finetune`.

    \b
    kronos finetune --config FILE                      train in this process
    kronos finetune --config FILE --enqueue NAME       put a job on Redis, print its id
    kronos finetune --watch ID                         follow a job to its end
    kronos finetune --cancel ID                        end a job

    Exit status: 0 when done, 1 when the job failed, 2 where what was given cannot be used.
    """
    from worker import finetune_command

    options = finetune_command.FinetuneOptions(allow_fallback=not no_fallback, **given)
    raise SystemExit(finetune_command.run(options, get_settings(), name, watch, cancel, as_json=as_json))


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="The folder and the whole metadata, as JSON.")
def models(as_json: bool) -> None:
    """Show the registered models, which forecast jobs may name as NAME or NAME@VERSION."""
    from worker import models_table
    from worker.model_registry import ModelRegistry

    folder = get_settings().model_folder
    if folder is None:
        raise click.ClickException(
            "KRONOS_MODEL_FOLDER is not set: name the folder that finetuning and all workers share"
        )
    registered = ModelRegistry(folder).list()
    if as_json:
        found = [models_table.as_json(model) for model in registered]
        click.echo(json.dumps({"folder": str(folder), "models": found}, indent=2))
        return
    click.echo(f"Registered models in {folder}" + ("" if registered else ": none yet"))
    if registered:
        from rich.console import Console

        Console().print(models_table.models_table(registered))


def _announced_workers() -> "list[Status]":
    from worker.connection import connect
    from worker.routing import live_workers

    with connect(get_settings().redis_url.get_secret_value()) as redis:
        return live_workers(redis)
