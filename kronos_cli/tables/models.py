"""Registered models as a table and as JSON."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from kronos_cli.tables.parts import simple_table
from kronos_client.registry.model_registry import DamagedModel
from kronos_client.registry.registered_model import Metadata, RegisteredModel

SHORT_CHARS: Final = 8
"""Shown characters of a commit or fingerprint."""

LEGEND: Final = (
    "tokenizer, predictor: best validation loss. over parent, over last value: reduction of the CRPS of the "
    "close on held-out candles."
)


def models_table(models: Sequence[RegisteredModel | DamagedModel]) -> RenderableType:
    """Two tables with one row per version: its origin and its quality. Below: the damaged versions.

    Text of the metadata is never markup.
    """
    what = simple_table(
        "model", "parent", "created", "data", names=["model", "parent"], texts=["created", "data"]
    )
    how_good = simple_table(
        "model", "tokenizer", "predictor", "over parent", "over last value", names=["model"]
    )
    damaged = []
    for model in models:
        if isinstance(model, DamagedModel):
            what.add_row(Text(model.reference), Text("damaged", style="red"))
            damaged.append(Text(f"{model.reference}: {model.reason}", style="red"))
            continue
        metadata = model.metadata
        created, data = f"{metadata.created_at:%Y-%m-%d}", str(metadata.data_fingerprint or "")[:SHORT_CHARS]
        what.add_row(Text(model.reference), Text(_parent(metadata.parent)), created, Text(data))
        how_good.add_row(Text(model.reference), *_quality(metadata))
    return Group(what, how_good, Text(LEGEND, style="dim"), *damaged)


def as_json(model: RegisteredModel | DamagedModel) -> dict[str, Any]:
    """All metadata, or the reason in ``damaged``. Jobs name the model by ``id``."""
    if isinstance(model, DamagedModel):
        return {"id": model.reference, "name": model.name, "version": model.version, "damaged": model.reason}
    return {"id": model.reference, **model.metadata.model_dump(mode="json"), "damaged": None}


def _parent(parent: Any) -> str:
    model, revision = _at(parent, "model"), _at(parent, "revision")
    if not isinstance(model, str):
        return ""
    return f"{model} @{revision[:SHORT_CHARS]}" if isinstance(revision, str) else model


def _quality(metadata: Metadata) -> list[str]:
    """The best losses, then the reductions in percent; empty if the metadata have no number."""
    losses = [_at(metadata.metrics, stage, "best_loss") for stage in ("tokenizer", "predictor")]
    against = _at(metadata.evaluation, "models", "finetuned", "against")
    percents = [_at(against, over, "difference") for over in ("start", "last_value")]
    shown = zip([*losses, *percents], ["{:.4g}"] * 2 + ["{:+.1f} %"] * 2, strict=True)
    return [form.format(value) if isinstance(value, int | float) else "" for value, form in shown]


def _at(value: Any, *keys: str) -> Any:
    """The value at this path of nested objects, or None."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
