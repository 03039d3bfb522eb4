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
    "tokenizer, predictor: best validation loss. over parent, over last value: reduction of the pinball loss "
    "of the close on held-out candles."
)


def models_table(models: Sequence[RegisteredModel | DamagedModel]) -> RenderableType:
    """Two tables with one row per version: its origin and its quality. Below: the damaged versions.

    Text of the metadata is never markup.
    """
    what = simple_table(
        "model", "parent", "created", "data", names=("model", "parent"), texts=("created", "data")
    )
    how_good = simple_table(
        "model", "tokenizer", "predictor", "over parent", "over last value", names=("model",)
    )
    damaged = []
    for model in models:
        if isinstance(model, DamagedModel):
            what.add_row(Text(model.reference), Text("damaged", style="red"))
            damaged.append(Text(f"{model.reference}: {model.reason}", style="red"))
            continue
        what.add_row(Text(model.reference), *map(Text, _origin(model.metadata)))
        how_good.add_row(Text(model.reference), *map(Text, _quality(model.metadata)))
    return Group(what, how_good, Text(LEGEND, style="dim"), *damaged)


def as_json(model: RegisteredModel | DamagedModel) -> dict[str, Any]:
    """All metadata, or the reason in ``damaged``. Jobs name the model by ``id``."""
    if isinstance(model, DamagedModel):
        return {"id": model.reference, "name": model.name, "version": model.version, "damaged": model.reason}
    return {"id": model.reference, **model.metadata.model_dump(mode="json"), "damaged": None}


def _origin(metadata: Metadata) -> tuple[str, ...]:
    fingerprint = str(metadata.data_fingerprint or "")[:SHORT_CHARS]
    return _parent(metadata.parent), f"{metadata.created_at:%Y-%m-%d}", fingerprint


def _quality(metadata: Metadata) -> tuple[str, ...]:
    return (
        _loss(_at(metadata.metrics, "tokenizer", "best_loss")),
        _loss(_at(metadata.metrics, "predictor", "best_loss")),
        _percent(_at(metadata.evaluation, "improvements", "start", "percent")),
        _percent(_at(metadata.evaluation, "improvements", "last_value", "percent")),
    )


def _parent(parent: Any) -> str:
    model, revision = _at(parent, "model"), _at(parent, "revision")
    if not isinstance(model, str):
        return ""
    return f"{model} @{revision[:SHORT_CHARS]}" if isinstance(revision, str) else model


def _loss(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else ""


def _percent(percent: Any) -> str:
    return f"{percent:+.1f} %" if isinstance(percent, int | float) else ""


def _at(value: Any, *keys: str) -> Any:
    """The value at this path of nested objects, or None."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
