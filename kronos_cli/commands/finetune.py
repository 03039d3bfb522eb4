"""``kronos finetune``: train in this process, or enqueue a job and follow it."""

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import click
import pandas as pd
from rich.console import Console
from rich.live import Live

from kronos_cli.commands.finetune_views import result_view, state_line, state_view
from kronos_cli.commands.options import PATH, SectionedCommand, candle_files, priority
from kronos_cli.files.errors import file_error
from kronos_cli.settings import get_settings
from kronos_cli.wording import in_own_words
from kronos_client.client import FinetuneHandle, FinetuneState, ForecastClient
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.finetune import PLACEHOLDER_PATH
from kronos_client.contract.names import Priority
from kronos_client.redis.routing import why_waiting
from kronos_model.bars.files.find import without_suffix
from kronos_model.bars.files.lookback import CandleFile
from kronos_model.bars.files.options import NO_OPTIONS, ReadOptions
from kronos_model.devices.driver import driver_version
from kronos_model.errors import CandleFileError, KronosError
from kronos_model.finetuning.config import load_config
from kronos_model.finetuning.launching import EACH_GPU, training_command, training_environment

INTERRUPTED = 130
NOT_OF_THE_JOB = {ErrorCode.BROKER_UNREACHABLE, ErrorCode.LOST, ErrorCode.RESULT_EXPIRED}
"""Errors of waiting for a job. The state of the job itself is not known."""


@dataclass(frozen=True)
class TrainingOptions:
    """The options of a training, as the command's help describes them. None means as in the config."""

    config: Path | None = None
    overrides: Sequence[str] = ()
    data: Sequence[str] = ()
    inline: Sequence[Path] = ()
    reading: ReadOptions = NO_OPTIONS
    device: str | None = None
    output: Path | None = None
    processes: int | None = None
    nodes: str = "1"
    master: str | None = None
    priority: Priority = "normal"
    allow_fallback: bool = True
    deadline_s: float | None = None
    job_id: str | None = None


@click.command(cls=SectionedCommand)
@click.option("--config", type=PATH, help="The config, a YAML or JSON file.")
@click.option(
    "--set", "overrides", multiple=True, metavar="FIELD=VALUE",
    help="Override a field of the config, such as predictor.epochs=3. May be repeated.",
)  # fmt: skip
@click.option(
    "--data", multiple=True, metavar="PATH",
    help="CSV or Parquet file or folder; overrides data.path. For a job: relative to the workers' "
    "KRONOS_DATA_FOLDER. May be repeated.",
)  # fmt: skip
@candle_files
@click.option("--device", help="auto, cpu, cuda, cuda:N or mps; overrides training_device.")
@click.option("--output", type=PATH, help="Folder of a run that is no job.")
@click.option(
    "--processes", type=click.IntRange(1),
    help="Processes on each machine, one a GPU.  [default: 1; with --nodes, one for each GPU]",
)  # fmt: skip
@click.option(
    "--nodes", default="1", metavar="N|MIN:MAX",
    help="Machines that train together. Run the same command on each. With MIN:MAX, training goes on "
    "without a lost machine.",
)  # fmt: skip
@click.option("--master", metavar="HOST[:PORT]", help="With --nodes: one of them, as all others reach it.")
@click.option("--enqueue", "name", metavar="NAME", help="Enqueue a job. The model is registered as NAME.")
@click.option(
    "--inline", multiple=True, type=PATH, metavar="FILE.csv",
    help="Candles to send in the job, one instrument per file. May be repeated.",
)  # fmt: skip
@priority
@click.option("--no-fallback", is_flag=True, help="Fail if there is no GPU, instead of training on the CPU.")
@click.option(
    "--deadline", "deadline_s", type=float, metavar="SECONDS", help="Give up the job after this time."
)
@click.option("--id", "job_id", help="The job's id.  [default: a random one]")
@click.option(
    "--watch",
    is_flag=False,
    flag_value="",
    metavar="[ID]",
    help="Follow the new job, or the job with this ID.",
)
@click.option("--cancel", metavar="ID", help="End the job with this ID. Its best checkpoint is kept.")
@click.option("--json", "as_json", is_flag=True, help="Print the states of the job as JSON lines.")
def finetune(
    name: str | None, watch: str | None, cancel: str | None, as_json: bool, no_fallback: bool, **given: Any
) -> None:
    """Train a model on your own candles: here, or as a job for `kronos worker --role finetune`.

    \b
    kronos finetune --config FILE                      train on this machine
    kronos finetune --config FILE --enqueue NAME       enqueue a job, print its id
    kronos finetune --watch ID                         follow a job to its end
    kronos finetune --cancel ID                        end a job

    Exit status: 0 when done, 1 if training failed, 2 if the options cannot be used, 75 if training here was
    stopped and saved (1 with several processes).
    """
    options, settings = TrainingOptions(allow_fallback=not no_fallback, **given), get_settings()
    _check_together(options, name, watch, cancel)
    if name is None and watch is None and cancel is None:
        raise SystemExit(train_here(options, settings.engine))
    with ForecastClient(settings=settings) as client:
        if cancel is not None:
            handle = client.finetune_handle(cancel)
            handle.check()
            handle.cancel()
            click.echo(f"The end of job {cancel} was requested.", err=True)
        elif name is not None:
            handle = enqueue(client, name, options, settings.max_inline_bars)
            _print_enqueued(client, handle, as_json=as_json)
        else:
            handle = client.finetune_handle(str(watch))
        if watch is not None:
            raise SystemExit(follow(handle, as_json=as_json))


def _check_together(
    options: TrainingOptions, name: str | None, watch: str | None, cancel: str | None
) -> None:
    """Raise UsageError if options exclude each other. ``watch`` is empty for the new job."""
    if sum(choice is not None for choice in (name, watch or None, cancel)) > 1:
        raise click.UsageError("--enqueue, --watch ID and --cancel ID exclude each other: give one of them")
    if watch == "" and name is None:
        raise click.UsageError("--watch needs the id of a job, or --enqueue NAME")
    is_new = name is not None or (watch is None and cancel is None)
    if not is_new and options != TrainingOptions():
        raise click.UsageError("--watch ID and --cancel ID take no further options")
    of_a_job = replace(
        options, config=None, overrides=(), data=(), device=None, output=None, reading=NO_OPTIONS,
        processes=None, nodes="1", master=None,
    )  # fmt: skip
    if name is None and of_a_job != TrainingOptions():
        text = "--inline, --priority, --no-fallback, --deadline and --id need a job: give --enqueue NAME"
        raise click.UsageError(text)
    if name is not None and (options.nodes, options.master) != ("1", None):
        raise click.UsageError("--nodes and --master are not for jobs: a job trains on one machine")
    nodes = re.fullmatch(r"([1-9]\d*)(?::([1-9]\d*))?", options.nodes)
    if nodes is None or int(nodes[1]) > int(nodes[2] or nodes[1]):
        raise click.UsageError(f"--nodes must be a number or MIN:MAX, not {options.nodes}")
    if (options.nodes == "1") != (options.master is None):
        raise click.UsageError("--nodes and --master need each other: the master is one of the nodes")
    if name is not None and options.output is not None:
        raise click.UsageError("--output is not for jobs: a job's model is registered by its name")
    if options.inline and options.data:
        raise click.UsageError("give --data or --inline, not both")
    stems = {without_suffix(file).name for file in options.inline}
    if options.reading.id_column is None and len(stems) < len(options.inline):
        raise click.UsageError("two files of --inline have the same name, the instrument's id: rename one")


def train_here(options: TrainingOptions, engine: str) -> int:
    """Train in this process, or replace it by one that starts several. Returns the exit status."""
    overrides = [*options.overrides, *_as_overrides(options.reading)]
    arguments = [f"--set={override}" for override in overrides]
    for name, value in (("config", options.config), ("device", options.device), ("output", options.output)):
        if value is not None:
            arguments.append(f"--{name}={value}")
    arguments.append(f"--engine={engine}")
    if options.data:
        arguments += ["--data", *options.data]
    if options.nodes == "1" and options.processes in (None, 1):
        from kronos_model.finetuning.__main__ import main  # torch

        return main(arguments)
    has_gpu = options.device != "cpu" and driver_version() is not None
    processes = options.processes or (EACH_GPU if has_gpu else 1)
    try:
        command = training_command(arguments, processes=processes, nodes=options.nodes, master=options.master)
        environment = training_environment(None, options.processes or 1, options.master)
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--master {options.master} is not known or not reached: {error}") from error
    return os.execve(sys.executable, command, environment)


def enqueue(
    client: ForecastClient, name: str, options: TrainingOptions, max_inline_bars: int
) -> FinetuneHandle:
    """Enqueue a job. Raises UsageError for an option that the job's contract refuses."""
    overrides = list(options.overrides)
    if not options.inline:
        overrides += _as_overrides(options.reading)
    paths = [PLACEHOLDER_PATH] if options.inline else options.data
    if paths:
        overrides.append(f"data.path={json.dumps(paths[0] if len(paths) == 1 else paths)}")
    try:
        # One bar above the limit: a file that is too long is refused, not cut.
        inline = dict(chain(*(_instruments(file, options, max_inline_bars + 1) for file in options.inline)))
        return client.finetune(
            load_config(options.config, overrides), name=name, data=inline or None,
            device=options.device or "auto", allow_fallback=options.allow_fallback,
            processes=options.processes, deadline_s=options.deadline_s, priority=options.priority,
            job_id=options.job_id,
        )  # fmt: skip
    except (KronosError, JobError) as error:
        if error.field is None:
            raise
        code = "" if str(error).startswith(error.code) else f"{error.code}: "
        raise click.UsageError(in_own_words(f"{code}{error}")) from error


def _instruments(file: Path, options: TrainingOptions, max_bars: int) -> Iterator[tuple[str, pd.DataFrame]]:
    """The candles of each instrument in a file. What is left out is reported."""
    try:
        content = CandleFile(file, options.reading)
        for instrument in content.instruments:
            found = content.last(max_bars, instrument)
            for text in found.warnings:
                click.echo(f"Warning: {text}", err=True)
            yield instrument or without_suffix(file).name, found.candles
    except CandleFileError as error:
        raise file_error(error) from None


def _as_overrides(reading: ReadOptions) -> list[str]:
    """The fields of the config that say the same."""
    given = asdict(reading).items()
    return [f"data.{name}={json.dumps(value)}" for name, value in given if value != getattr(NO_OPTIONS, name)]


def _print_enqueued(client: ForecastClient, handle: FinetuneHandle, *, as_json: bool) -> None:
    """Print the job's id. Hints go to standard error, so that scripts read only the id."""
    sent = json.dumps({"id": handle.id, "state": "PENDING", "queue": handle.queue})
    click.echo(sent if as_json else handle.id)
    click.echo(f"Enqueued on {handle.queue}. To follow it: kronos finetune --watch {handle.id}", err=True)
    if (reason := why_waiting(str(handle.queue), client.workers())) is not None:
        click.echo(reason, err=True)


def follow(handle: FinetuneHandle, *, as_json: bool) -> int:
    """Follow a job to its end: live, by lines or as JSON lines. Returns the exit status."""
    console = Console(highlight=False)
    live = Live(console=console, transient=True) if console.is_terminal and not as_json else None
    last, warned = "", set[str]()

    def show(state: FinetuneState) -> None:
        nonlocal last
        if state.has_ended:
            return
        if as_json:
            _print_json(handle, state.name, progress=state.progress.model_dump(exclude_none=True))
            return
        for text in set(state.progress.warnings or ()) - warned:
            warned.add(text)
            console.print(f"Warning: {text}", style="yellow", markup=False, soft_wrap=True)
        if live is not None:
            live.update(state_view(state), refresh=True)
        elif (line := state_line(state)) != last:
            console.print(last := line, markup=False, soft_wrap=True)

    try:
        with live or nullcontext():
            result = handle.wait(on_progress=show)
    except KeyboardInterrupt:
        click.echo(
            f"Stopped following; the job continues.\n"
            f"To follow again: kronos finetune --watch {handle.id}\n"
            f"To end it:       kronos finetune --cancel {handle.id}",
            err=True,
        )
        return INTERRUPTED
    except JobError as error:
        if as_json:
            content = dict(zip(("code", "message", "field", "details"), error.args, strict=True))
            _print_json(handle, "UNKNOWN" if error.code in NOT_OF_THE_JOB else "FAILURE", error=content)
        click.echo(f"Error: {error}", err=True)
        if error.code == ErrorCode.BROKER_UNREACHABLE:
            again = f"kronos finetune --watch {handle.id}"
            click.echo(f"The job may continue. To follow it again: {again}", err=True)
        return 1
    if as_json:
        _print_json(handle, "SUCCESS", result=result.model_dump(mode="json"))
    else:
        console.print(result_view(result))
    return 0


def _print_json(handle: FinetuneHandle, state: str, **content: Any) -> None:
    click.echo(json.dumps({"id": handle.id, "state": state, **content}))
