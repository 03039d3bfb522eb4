"""Registered models as a table and as JSON."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from kronos_cli.tables.parts import simple_table
from kronos_client.contract.calibration import Calibration
from kronos_client.registry.model_registry import DamagedModel
from kronos_client.registry.registered_model import Metadata, RegisteredModel

DATE_CHARS: Final = 10
SHORT_CHARS: Final = 8
"""Shown characters of a commit or fingerprint."""

LEGEND: Final = (
    "tokenizer, predictor: best validation loss. over parent, over last value: reduction of the CRPS of the "
    "close on held-out candles, or in the backtest of the calibration; 80 % held: closes there in the 80 % "
    "interval, before it."
)


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
        "model", "tokenizer", "predictor", "over parent", "over last value", "80 % held", names=["model"]
    )  # fmt: skip
    calibrated = simple_table("model", "calibrated for", "from", "until", "fitted", names=["model"])
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
        if metadata.calibration is not None:
            calibrated.add_row(Text(model.reference), *map(Text, _calibration(metadata.calibration)))
    tables = [what, how_good, *([calibrated] if calibrated.row_count else [])]
    several = [name for name, number in Counter(model.name for model in models).items() if number > 1]
    meanings = [Text(f"{name} means {name}@{current[name]}.") for name in several if name in current]
    return Group(*tables, *meanings, Text(LEGEND, style="dim"), *damaged)


def as_json(model: RegisteredModel | DamagedModel, current: Mapping[str, int]) -> dict[str, Any]:
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
    percents = [_at(ours, "against", over, "difference") for over in ("start", "last_value")]
    held, forms = _at(ours, "scores", "coverage", "0.8"), ["{:.4g}"] * 2 + ["{:+.1f} %"] * 2 + ["{:.0%}"]
    shown = zip([*losses, *percents, held], forms, strict=True)
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
