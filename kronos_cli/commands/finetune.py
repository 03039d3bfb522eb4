"""``kronos finetune``."""

from pathlib import Path
from typing import Any

import click

from kronos_cli.settings import get_settings


@click.command()
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
    from kronos_cli import finetune_command

    options = finetune_command.FinetuneOptions(allow_fallback=not no_fallback, **given)
    raise SystemExit(finetune_command.run(options, get_settings(), name, watch, cancel, as_json=as_json))
