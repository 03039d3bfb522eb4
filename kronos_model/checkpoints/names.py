"""The names of models: bundled and published ones, and what must be said of them. No further packages."""

import difflib
import functools
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

BUNDLED_FOLDER: Final = Path(__file__).parents[1] / "bundled"
BUNDLED_MODEL: Final = "kronos-tiny"
"""The model that needs no download."""
SHORT_NAMES: Final = {
    "mini": "NeoQuasar/Kronos-mini",
    "small": "NeoQuasar/Kronos-small",
    "base": "NeoQuasar/Kronos-base",
    "tiny": BUNDLED_MODEL,
}
FOR_TRYING: Final = "for trying the service, not for trading"
REGISTERED_HERE: Final = "is the registered model"
NO_BACKTEST: Final = "No backtest of this model is recorded here."


@functools.cache
def bundled_names() -> tuple[str, ...]:
    """Names of the checkpoints that come with this package."""
    return tuple(sorted(config.parents[1].name for config in BUNDLED_FOLDER.glob("*/model/config.json")))


def full_name(name: str) -> str:
    """The name that a short one stands for; other names, and those of folders, stay as they are."""
    full = SHORT_NAMES.get(name, name)
    return name if full != name and os.path.isdir(name) else full  # noqa: PTH112  # takes any text


def short_name_taken(name: str | None, reference: str | None) -> list[str]:
    """The warning about a registered model, if there is one, that has the short name of another model."""
    full = SHORT_NAMES.get(name or "")
    return [f"{name} {REGISTERED_HERE} {reference} here, not {full}."] if full and reference else []


def caution_in(warnings: Iterable[str]) -> str | None:
    """The warning that a model is only for trying, if there is one."""
    return next((text for text in warnings if FOR_TRYING in text), None)


def did_you_mean(name: str, known: Iterable[str] | None = None) -> str:
    """The end of a message about an unknown name: the one most like it, if any is.

    Args:
        known: Full names to choose from, also in short; by default the bundled and published ones.
    """
    names = {*bundled_names(), *SHORT_NAMES.values()} if known is None else set(known)
    names |= {short for short, full in SHORT_NAMES.items() if full in names}
    nearest = difflib.get_close_matches(name, sorted(names - {name}), 1)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def parent_of(metadata: Mapping[str, Any]) -> Any:
    """What a checkpoint with this metadata was finetuned from; None if it does not say."""
    parent = metadata.get("parent")
    return parent.get("model") if isinstance(parent, Mapping) else None


def comes_from_bundled(metadata: Mapping[str, Any]) -> bool:
    """Whether a checkpoint with this metadata is a bundled one, or was finetuned from one."""
    return metadata.get("for_trying") is True or parent_of(metadata) in bundled_names()


def caution_about(name: str, metadata: Mapping[str, Any]) -> str | None:
    """What must be said wherever a model is used that is only for trying the service; None for others."""
    if metadata.get("trained") is False:
        return f"{name} is untrained, so its forecasts mean nothing: {FOR_TRYING}."
    if name in bundled_names():
        return f"{name} was trained on synthetic candles: {FOR_TRYING}."
    if comes_from_bundled(metadata):
        return f"{name} comes from a model of synthetic candles: {FOR_TRYING}."
    return None
