"""The job of one file: its options, its candles, and the fingerprint of both."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import pandas as pd

from kronos_cli.files.inputs import ForecastInput
from kronos_client.contract.errors import JobError
from kronos_client.contract.names import Priority
from kronos_client.contract.worker_status import AnyWorkerStatus
from kronos_client.registry.model_registry import ModelRegistry
from kronos_model.bars.files.lookback import read_candles
from kronos_model.checkpoints.source import read_metadata
from kronos_model.errors import CheckpointError, KronosError

DEFAULT_LOOKBACK: Final = 400


@dataclass(frozen=True)
class BulkOptions:
    """The options of every job, as ``ForecastClient.submit`` takes them. ``lookback`` is in bars."""

    lookback: int
    pred_len: int = 48
    sample_count: int = 10
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 0.9
    seed: int | None = None
    quantiles: Sequence[float] = (0.1, 0.5, 0.9)
    model: str | None = None
    timezone: str | None = None
    device: str = "auto"
    allow_fallback: bool = True
    priority: Priority = "normal"
    deadline_s: float | None = None

    def for_client(self) -> dict[str, Any]:
        """The arguments of ``submit``."""
        given = asdict(self)
        del given["lookback"]
        return given

    def for_fingerprint(self) -> dict[str, Any]:
        """The options that change the forecast, without those on where and when it is computed."""
        given = self.for_client()
        for name in ("device", "allow_fallback", "priority", "deadline_s"):
            del given[name]
        return given


@dataclass(frozen=True, eq=False)
class ForecastWork:
    """A file with its candles, and the fingerprint of candles and options."""

    input: ForecastInput
    candles: pd.DataFrame
    fingerprint: str


def default_lookback(
    model: str | None, model_folder: Path | None, workers: Sequence[AnyWorkerStatus] = ()
) -> int:
    """The lookback of the model's training if it is known on this machine, else 400 bars.

    A registered model of this name comes first, as for workers.
    """
    ready = [worker.model.id for worker in workers if worker.model]
    name = model or (ready[0] if ready else None)
    if name is None:
        return DEFAULT_LOOKBACK
    try:
        registered = ModelRegistry(model_folder).resolve(name) if model_folder is not None else None
        lookback = registered.metadata.lookback if registered else read_metadata(name).get("lookback")
    except CheckpointError:  # damaged on this machine; the worker may have a good copy
        lookback = None
    return lookback if isinstance(lookback, int) else DEFAULT_LOOKBACK


def read_work(one: ForecastInput, options: BulkOptions) -> ForecastWork:
    """Read a file's candles. Raises JobError if they cannot be used."""
    try:
        candles = read_candles(one.path, options.lookback)
    except KronosError as error:
        # The message keeps the path, since the file is the user's own.
        raise JobError(error.code, error.message, error.field, error.details) from None
    digest = hashlib.sha256(json.dumps(options.for_fingerprint(), sort_keys=True).encode())
    for name in candles:
        column = candles[name]
        is_text = name == "timestamps"
        digest.update(f"\n{name}\n".encode())
        digest.update("\n".join(column).encode() if is_text else column.to_numpy("<f8").tobytes())
    return ForecastWork(one, candles, digest.hexdigest())
