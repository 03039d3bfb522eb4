"""``kronos calibrate``."""

import hashlib
import json
from pathlib import Path

import click

from kronos_cli.commands import options
from kronos_cli.commands.models import model_as_json, model_registry, register_pair
from kronos_client.backtesting.calibrating import fit_calibration
from kronos_client.contract.model_info import ModelInfo
from kronos_client.registry.model_registry import ModelRegistry
from kronos_model.checkpoints.source import locate_checkpoint, read_metadata


@click.command()
@click.argument("backtest", metavar="FOLDER", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--name", required=True, help="The name whose next version has the calibration.")
@click.option("--model", help="The backtest's model.  [default: the only one]")
@options.max_context
@click.option("--json", "as_json", is_flag=True, help="Print all metadata as JSON.")
def calibrate(backtest: Path, name: str, model: str | None, max_context: int | None, as_json: bool) -> None:
    """Fit quantile corrections from a backtest, and register a version with them.

    FOLDER is that of `kronos backtest`. The new version has the weights of the model that was tested, which
    may be the bundled one, one of the hub, or a registered one. Jobs with "calibrated" in their output get
    the corrected quantiles, at the backtest's lookback and up to its horizon. The version is stored in
    KRONOS_MODEL_FOLDER.
    """
    fit = fit_calibration(backtest, model)
    registry = model_registry()
    parts, known = _weights(registry, fit.model)
    calibration = fit.calibration.model_dump(mode="json")
    content = json.dumps(calibration | {"fitted_at": None}, sort_keys=True)
    known |= {"evaluation": fit.evaluation, "calibration": calibration}
    registered = register_pair(
        registry, parts, name, known, max_context,
        fingerprint=hashlib.sha256(content.encode()).hexdigest(),
    )  # fmt: skip
    if as_json:
        click.echo(json.dumps(model_as_json(registered, registry.current([registered]))))
        return
    click.echo(f"{registered.reference}: calibrated from {fit.calibration.num_windows} windows.\n{fit.check}")


def _weights(registry: ModelRegistry, model: ModelInfo) -> tuple[dict[str, Path], dict[str, object]]:
    """The folders of the model and its tokenizer, and the metadata to keep."""
    parent = {
        "model": model.id, "revision": model.revision,
        "tokenizer": model.tokenizer_id, "tokenizer_revision": model.tokenizer_revision,
    }  # fmt: skip
    if registered := registry.resolve(f"{model.id}@{model.revision}"):
        registered.verify()
        parts = {part: registered.folder / part for part in ("model", "tokenizer")}
        return parts, registered.metadata.model_dump(mode="json") | {"parent": parent}
    parts = {
        "model": locate_checkpoint(model.id, "model", model.revision, {}).folder,
        "tokenizer": locate_checkpoint(model.tokenizer_id, "tokenizer", model.tokenizer_revision, {}).folder,
    }
    return parts, read_metadata(model.id) | {"parent": parent}
