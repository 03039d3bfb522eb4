"""From an app's data (configs, candles, paths) to a finetuning job or a backtest. No pandas needed."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import date
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

from kronos_client.contract.dataframes import plain_candles
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.finetune import PLACEHOLDER_PATH
from kronos_client.contract.names import SCHEMA_VERSION
from kronos_client.core.forecast_request import plain
from kronos_client.core.options import BacktestJobOptions, DataSource, FinetuneOptions, check_options
from kronos_client.core.series import named_sources, readable, series_payload, within
from kronos_model.bars.files.options import ReadOptions
from kronos_model.errors import FinetuningConfigError
from kronos_model.finetuning.config import FinetuneConfig, load_config, parse_config

ConfigSource = FinetuneConfig | Mapping[str, Any] | str | PathLike[str]
"""A config, a mapping like it, or the path of a YAML or JSON file."""


def finetune_payload(
    config: ConfigSource, *, name: str, **options: Unpack[FinetuneOptions]
) -> dict[str, Any]:
    """Make a finetuning job of plain JSON values.

    Raises:
        JobError: The config cannot be used, or the data cannot be read.
        TypeError: An option does not exist.
    """
    check_options(options, FinetuneOptions.__annotations__)
    given: dict[str, Any] = {"device": "auto", "allow_fallback": True, "priority": "normal", **options}
    data = given.pop("data", None)
    content = _content(config, needs_path=data is None)
    path = content.get("data", {}).pop("path")
    own_device = content.pop("training_device", "auto")
    if given["device"] == "auto":
        given["device"] = own_device
    given["config"] = {name: value for name, value in content.items() if value != {}}
    given["data"] = {"path": path} if data is None else data_payload(data)
    return _payload({"name": name} | given)


def data_payload(data: DataSource) -> dict[str, Any]:
    """The field ``data`` of a job; raises JobError if candles cannot be read."""
    if isinstance(data, str | PathLike):
        return {"path": str(data)}
    if isinstance(data, list | tuple) and all(isinstance(path, str | PathLike) for path in data):
        return {"path": [str(path) for path in data]}
    instruments = []
    with readable("the candles", "data"):
        names, sources = named_sources(plain_candles(data))
    for index, (name, source) in enumerate(zip(names, sources, strict=True)):
        with within(f"data.instruments.{index}"):
            payload = series_payload(source, name)
            payload.pop("timezone", None)  # nothing is inferred from them
            instruments.append(payload)
    return {"instruments": instruments}


def _content(config: ConfigSource, *, needs_path: bool) -> dict[str, Any]:
    """The checked fields that were set, as JSON; ``data.path`` is among them."""
    expected = f"config must be a FinetuneConfig, a mapping or a file's path, not {type(config).__name__}"
    try:
        if isinstance(config, str | PathLike):
            overrides = () if needs_path else (f"data.path={json.dumps(PLACEHOLDER_PATH)}",)
            checked = load_config(Path(config), overrides)
        elif isinstance(config, FinetuneConfig):
            checked = config
        elif isinstance(config, Mapping):
            fields = dict(config)
            data = fields.get("data", {})
            if not needs_path and isinstance(data, Mapping):
                fields["data"] = {"path": PLACEHOLDER_PATH, **data}
            checked = parse_config(fields)
        else:
            raise JobError(ErrorCode.BAD_TYPE, expected, "config")
    except FinetuningConfigError as error:
        prefix = "" if error.field in (None, "config") else "config."
        raise JobError(error.code, error.message, f"{prefix}{error.field or 'config'}") from None
    return checked.model_dump(mode="json", exclude_unset=True)


def backtest_payload(data: DataSource, **options: Unpack[BacktestJobOptions]) -> dict[str, Any]:
    """Make a backtest of plain JSON values. The contract checks them later.

    Raises:
        JobError: The data cannot be read.
        TypeError: An option does not exist.
    """
    check_options(options, BacktestJobOptions.__annotations__)
    given: dict[str, Any] = {**options}
    for name in ("start", "end"):
        if isinstance(given.get(name), date):
            given[name] = given[name].isoformat()
    if isinstance(given.get("reading"), ReadOptions):
        given["reading"] = asdict(given["reading"])
    models = given.get("models")
    with readable("models", "models"):
        if models is not None:
            given["models"] = [models] if isinstance(models, str) else list(models)
    return _payload({"data": data_payload(data)} | given)


def _payload(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of a job, without those that are None."""
    fields = {"schema_version": SCHEMA_VERSION} | given
    return plain(**{name: value for name, value in fields.items() if value is not None})
