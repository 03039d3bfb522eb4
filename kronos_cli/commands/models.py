"""``kronos models``, and its subcommands register, promote and rollback."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import click
from rich.console import Group, RenderableType
from rich.text import Text

from kronos_cli.commands import options
from kronos_cli.settings import get_settings
from kronos_cli.terminal import show, simple_table
from kronos_client.contract.calibration import Calibration
from kronos_client.registry.model_registry import (
    DamagedModel,
    ModelRegistry,
    check_name,
    read_promotions,
    roll_back,
)
from kronos_client.registry.promoting import NotPromoted, meant, promote_checked
from kronos_client.registry.registered_model import Metadata, RegisteredModel
from kronos_model.checkpoints.names import did_you_mean
from kronos_model.checkpoints.source import CONFIG_NAME, locate_checkpoint, read_json, read_metadata
from kronos_model.errors import CheckpointMismatch

FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
TOKEN_BITS = ("s1_bits", "s2_bits")
DATE_CHARS: Final = 10
SHORT_CHARS: Final = 8
"""Shown characters of a commit or fingerprint."""
LEGEND: Final = (
    "tokenizer, predictor: best validation loss, for models of the same candles to compare. over parent, "
    "over bootstrap: reduction of the CRPS of the close on held-out candles, or in the backtest of the "
    "calibration; 80 % held: closes there in the 80 % interval, before it."
)


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print the folder and all metadata as JSON.")
@click.pass_context
def models(context: click.Context, as_json: bool) -> None:
    """Show the registered models that forecast jobs can name, as NAME or NAME@VERSION."""
    if context.invoked_subcommand is not None:
        return
    registry = model_registry()
    registered = registry.list()
    current = registry.current(registered)
    if not as_json:
        click.echo(f"Registered models in {registry.folder}" + ("" if registered else ": none yet"))
    if as_json or registered:
        found = {
            "folder": str(registry.folder),
            "models": [model_as_json(model, current) for model in registered],
        }
        show(found, models_table(registered, current), as_json=as_json)


@models.command()
@click.argument("checkpoint", metavar="FOLDER", type=FOLDER)
@click.option("--name", required=True, help="The name by which jobs choose the model.")
@click.option("--tokenizer", type=FOLDER, help="Folder of its tokenizer.  [default: FOLDER/tokenizer]")
@options.max_context
@click.option("--json", "as_json", is_flag=True, help="Print all metadata as JSON.")
def register(
    checkpoint: Path, name: str, tokenizer: Path | None, max_context: int | None, as_json: bool
) -> None:
    """Register a checkpoint that was trained here, as the next version of its name.

    FOLDER is the checkpoint of `kronos finetune`, or was written by save_pretrained. The same files are
    registered once.
    """
    registry = model_registry()
    model = register_folder(registry, checkpoint, name, tokenizer, max_context)
    click.echo(json.dumps(model_as_json(model, registry.current([model]))) if as_json else model.reference)


@models.command()
@click.argument("reference", metavar="NAME@VERSION")
@click.option(
    "--backtest", type=FOLDER, help="Folder of a backtest of this version and of the one that NAME means now."
)
@click.option("--force", is_flag=True, help="Promote it whatever a backtest says.")
def promote(reference: str, backtest: Path | None, force: bool) -> None:
    """Let NAME mean this version, if a backtest says that it is no worse than what NAME means now.

    Without promotions, a name means its newest version. Workers use it with the next job.
    """
    try:
        done = promote_checked(model_registry(), reference, backtest, forced=force)
    except NotPromoted as refusal:
        hint = " --force promotes it all the same; --backtest gives a backtest"
        raise click.ClickException(f"{refusal}.{hint}") from None
    if done is None:
        raise click.ClickException(f"no version {reference}: write NAME@VERSION, as `kronos models` lists it")
    click.echo(f"{done.new.name} means {reference} now" + _instead(done.before, done.new))
    if done.verdict is not None and done.before is not None:
        from kronos_model.evaluation.report import compared  # NumPy

        click.echo(f"The backtest says: {compared(done.before.reference, done.verdict)}.")


@models.command()
@click.argument("name")
def rollback(name: str) -> None:
    """Let NAME mean what it meant before its last promotion."""
    registry = model_registry()
    check_name(name)
    before = meant(registry, name)
    if name not in (known := registry.names(name)):
        raise click.ClickException(f"no registered model is called {name}{did_you_mean(name, known)}")
    if not roll_back(registry.folder / name):
        raise click.ClickException(f"no version of {name} was promoted")
    present = meant(registry, name)
    means = "no version that can be used: see `kronos models`" if present is None else present.reference
    click.echo(f"{name} means {means} now" + _instead(before, present))
    if not read_promotions(registry.folder / name):
        click.echo(f"No promotion is left, so {name} means its newest version.")


def _instead(before: RegisteredModel | None, now: RegisteredModel | None) -> str:
    return "." if before in (None, now) else f", instead of {before and before.reference}."


def register_folder(
    registry: ModelRegistry, checkpoint: Path, name: str, tokenizer: Path | None, max_context: int | None
) -> RegisteredModel:
    """Register a model's folder and its tokenizer's. Raises KronosError."""
    parts = {
        "model": locate_checkpoint(checkpoint, "model", None, {}).folder,
        "tokenizer": locate_checkpoint(tokenizer or checkpoint / "tokenizer", "tokenizer", None, {}).folder,
    }
    return register_pair(registry, parts, name, read_metadata(checkpoint), max_context)


def register_pair(
    registry: ModelRegistry, parts: Mapping[str, Path], name: str, known: Mapping[str, Any],
    max_context: int | None, *, fingerprint: str = "",
) -> RegisteredModel:  # fmt: skip
    """Register the folders of a model and its tokenizer with the metadata ``known``. Raises KronosError."""
    bits = {part: _token_bits(folder) for part, folder in parts.items()}
    if bits["model"] != bits["tokenizer"]:
        raise CheckpointMismatch(
            "The model and the tokenizer have different token sizes "
            f"({', '.join(TOKEN_BITS)} in {CONFIG_NAME}): give --tokenizer the one of the model's training.",
            details=bits,
        )
    metadata = {**known, "max_context": max_context or known.get("max_context", options.DEFAULT_MAX_CONTEXT)}
    with TemporaryDirectory() as pair:
        for part, folder in parts.items():
            (Path(pair) / part).symlink_to(folder.resolve())
        return registry.register(Path(pair), name, job_id="", fingerprint=fingerprint, metadata=metadata)


def _token_bits(folder: Path) -> list[object]:
    config = read_json(folder / CONFIG_NAME)
    return [config.get(name) for name in TOKEN_BITS] if isinstance(config, dict) else []


def model_registry() -> ModelRegistry:
    """The registry in KRONOS_MODEL_FOLDER."""
    folder = get_settings().model_folder
    if folder is None:
        raise click.ClickException("KRONOS_MODEL_FOLDER is not set: set it to the folder that workers share")
    return ModelRegistry(folder)


def models_table(
    models: Sequence[RegisteredModel | DamagedModel], current: Mapping[str, int]
) -> RenderableType:
    """Tables with one row per version: its origin, its quality, its calibration. Below: the damaged ones.

    A name of several versions has a line that says which of them it means. Text of the metadata is never
    markup.
    """
    what = simple_table(
        "model", "parent", "created", "data", names=["model", "parent"], texts=["created", "data"]
    )
    how_good = simple_table(
        "model", "tokenizer", "predictor", "over parent", "over bootstrap", "80 % held", names=["model"]
    )  # fmt: skip
    calibrated = simple_table("model", "calibrated for", "from", "until", "fitted", names=["model"])
    damaged = []
    for model in models:
        if isinstance(model, DamagedModel):
            what.add_row(Text(model.reference), Text("damaged", style="red"))
            damaged.append(Text(f"{model.reference}: {model.reason}", style="red"))
            continue
        metadata = model.metadata
        created, data = f"{metadata.created_at:%Y-%m-%d}", str(metadata.data_fingerprint or "")
        data = data.removeprefix("sha256:")[:SHORT_CHARS]
        what.add_row(Text(model.reference), Text(_parent(metadata.parent)), created, Text(data))
        how_good.add_row(Text(model.reference), *_quality(metadata))
        if metadata.calibration is not None:
            calibrated.add_row(Text(model.reference), *map(Text, _calibration(metadata.calibration)))
    tables = [what, how_good, *([calibrated] if calibrated.row_count else [])]
    several = [name for name, number in Counter(model.name for model in models).items() if number > 1]
    meanings = [Text(f"{name} means {name}@{current[name]}.") for name in several if name in current]
    return Group(*tables, *meanings, Text(LEGEND, style="dim"), *damaged)


def model_as_json(model: RegisteredModel | DamagedModel, current: Mapping[str, int]) -> dict[str, Any]:
    """All metadata, or the reason in ``damaged``. ``current``: whether the name alone means this version."""
    known: dict[str, Any] = {"name": model.name, "version": model.version, "damaged": None}
    if isinstance(model, DamagedModel):
        known["damaged"] = model.reason
    else:
        known = model.metadata.model_dump(mode="json") | known
    return {"id": model.reference, **known, "current": current.get(model.name) == model.version}


def _parent(parent: Any) -> str:
    model, revision = _at(parent, "model"), _at(parent, "revision")
    if not isinstance(model, str):
        return ""
    return f"{model} @{revision[:SHORT_CHARS]}" if isinstance(revision, str) else model


def _quality(metadata: Metadata) -> list[str]:
    """The scores; empty if the metadata have none."""
    losses = [_at(metadata.metrics, stage, "best_loss") for stage in ("tokenizer", "predictor")]
    judged = _at(metadata.evaluation, "models")
    ours = next(iter(judged.values()), None) if isinstance(judged, Mapping) else None
    percents = [_at(ours, "against", over, "difference") for over in ("start", "bootstrap")]
    forms = ["{:.4g}"] * 2 + ["{:+.1f} %"] * 2 + ["{:.0%}"]
    shown = zip([*losses, *percents, metadata.coverage], forms, strict=True)
    return [form.format(value) if isinstance(value, int | float) else "" for value, form in shown]


def _calibration(of: Calibration) -> list[str]:
    return [
        f"{of.lookback} bars read, {of.horizon} ahead", f"{of.num_windows} windows", of.last[:DATE_CHARS],
        f"{of.fitted_at:%Y-%m-%d}",
    ]  # fmt: skip


def _at(value: Any, *keys: str) -> Any:
    """The value at this path of nested objects, or None."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
