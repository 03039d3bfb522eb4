"""Configs from YAML and JSON files, with overrides from the command line."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kronos_model.errors import FinetuningConfigError
from kronos_model.finetuning.config import FinetuneConfig, parse_config


def load_config(path: Path | None = None, overrides: Sequence[str] = (), **fields: Any) -> FinetuneConfig:
    """Load a config from a YAML or JSON file.

    ``overrides`` such as ``predictor.epochs=3`` replace fields; their values are YAML. ``fields`` are whole
    top-level fields, which replace both.

    Raises FinetuningConfigError, whose ``field`` is the dotted path at fault.
    """
    content: dict[str, Any] = {}
    if path is not None:
        content = _read(path)
    for override in overrides:
        _apply(content, override)
    return parse_config(content | fields)


def _read(path: Path) -> dict[str, Any]:
    import yaml  # optional: a config from a mapping does not need it

    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise FinetuningConfigError(f"{path} cannot be read: {error}", field="config") from error
    if not isinstance(content, dict):
        raise FinetuningConfigError(f"{path} holds no fields, but a {type(content).__name__}", field="config")
    return content


def _apply(content: dict[str, Any], override: str) -> None:
    """Put ``a.b=value`` into nested mappings."""
    import yaml

    name, has_value, text = override.partition("=")
    *parents, last = name.strip().split(".")
    if not has_value or not last:
        raise FinetuningConfigError(f"{override!r} is no override: write field.field=value", field="config")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise FinetuningConfigError(f"{override!r}: the value cannot be read: {error}", field=name) from error
    target = content
    for parent in parents:
        inner = target.get(parent)
        if not isinstance(inner, dict):
            inner = target[parent] = {}
        target = inner
    target[last] = value
