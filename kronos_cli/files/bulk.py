"""The job of one file: its candles, and the fingerprint of candles and options."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pandas as pd

from kronos_client.contract.errors import JobError
from kronos_client.contract.worker_status import AnyWorkerStatus
from kronos_client.core.forecast_request import ForecastOptions
from kronos_client.registry.model_registry import ModelRegistry
from kronos_model.bars.files.lookback import read_candles
from kronos_model.checkpoints.source import read_metadata
from kronos_model.errors import CheckpointError, KronosError

DEFAULT_LOOKBACK: Final = 400
NO_PART_OF_THE_FORECAST: Final = ("device", "allow_fallback", "priority", "deadline_s")
"""Options on where and when it is computed."""


@dataclass(frozen=True, eq=False)
class ForecastWork:
    """A file with its forecast's name, its candles, and the fingerprint of candles and options."""

    name: str
    file: Path
    candles: pd.DataFrame
    fingerprint: str


def default_lookback(
    model: str | None, model_folder: Path | None, workers: Sequence[AnyWorkerStatus] = ()
) -> int:
    """The lookback of the model's training if it is known on this machine, else 400 bars.

    A registered model of this name comes first, as for workers.
    """
    names = [model] if model else [worker.model.id for worker in workers if worker.model]
    if not names:
        return DEFAULT_LOOKBACK
    try:
        registered = ModelRegistry(model_folder).resolve(names[0]) if model_folder is not None else None
        lookback = registered.metadata.lookback if registered else read_metadata(names[0]).get("lookback")
    except CheckpointError:  # damaged on this machine; the worker may have a good copy
        lookback = None
    return lookback if isinstance(lookback, int) else DEFAULT_LOOKBACK


def read_work(name: str, file: Path, lookback: int, options: ForecastOptions) -> ForecastWork:
    """Read the last ``lookback`` candles of a file. Raises JobError if they cannot be used."""
    try:
        candles = read_candles(file, lookback)
    except KronosError as error:
        # The message keeps the path, since the file is the user's own.
        raise JobError(error.code, error.message, error.field, error.details) from None
    covered = {option: value for option, value in options.items() if option not in NO_PART_OF_THE_FORECAST}
    digest = hashlib.sha256(json.dumps(covered, sort_keys=True).encode())
    for title in candles:
        column = candles[title]
        is_text = title == "timestamps"
        digest.update(f"\n{title}\n".encode())
        digest.update("\n".join(column).encode() if is_text else column.to_numpy("<f8").tobytes())
    return ForecastWork(name, file, candles, digest.hexdigest())
