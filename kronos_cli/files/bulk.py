"""Forecasts of many files: the options, the fingerprint of each, and one outcome for each."""

import hashlib
import json
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, Final

import pandas as pd

from kronos_cli.files.inputs import ForecastInput
from kronos_client.client import ForecastClient
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import Priority
from kronos_client.contract.results import ForecastResult
from kronos_model.bars.files.lookback import read_candles
from kronos_model.errors import KronosError

OF_ALL: Final = (
    ErrorCode.BROKER_UNREACHABLE,
    ErrorCode.NO_GPU_WORKER,
    ErrorCode.INVALID_DEVICE,
    ErrorCode.MODEL_NOT_ALLOWED,
    ErrorCode.CHECKPOINT_INVALID,
    ErrorCode.CHECKPOINT_MISSING,
    ErrorCode.CHECKPOINT_MISMATCH,
    ErrorCode.TIMEZONE_UNKNOWN,
)
"""Errors that every further file would meet as well."""


@dataclass(frozen=True)
class BulkOptions:
    """The options of every file, as ``ForecastClient.submit`` takes them; ``lookback`` in bars."""

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
        """The options that decide the forecast; not where and when it is computed."""
        given = self.for_client()
        for name in ("device", "allow_fallback", "priority", "deadline_s"):
            del given[name]
        return given


@dataclass(frozen=True, eq=False)
class ForecastWork:
    """A file with its candles, and the fingerprint of what its forecast is made from."""

    input: ForecastInput
    candles: pd.DataFrame
    fingerprint: str


@dataclass(frozen=True)
class FileOutcome:
    """The result of a file, or its error."""

    work: ForecastWork
    job_id: str
    result: ForecastResult | None
    error: JobError | None


def read_work(one: ForecastInput, options: BulkOptions) -> ForecastWork:
    """Read a file's candles; raises JobError if they cannot be used."""
    try:
        candles = read_candles(one.path, options.lookback)
    except KronosError as error:
        # With its path: the file is this user's own.
        raise JobError(error.code, error.message, error.field, error.details) from None
    digest = hashlib.sha256(json.dumps(options.for_fingerprint(), sort_keys=True).encode())
    for name in candles:
        column = candles[name]
        is_text = name == "timestamps"
        digest.update(f"\n{name}\n".encode())
        digest.update("\n".join(column).encode() if is_text else column.to_numpy("<f8").tobytes())
    return ForecastWork(one, candles, digest.hexdigest())


def forecast_all(
    client: ForecastClient,
    works: Iterable[ForecastWork],
    options: BulkOptions,
    *,
    max_in_flight: int,
    timeout_s: float | None,
) -> Generator[FileOutcome, None, None]:
    """Yield each outcome as soon as it is there. Files are read when there is room for their jobs.

    Jobs under way are cancelled at an error, and when the iterator is closed.

    Raises:
        JobError: every further file would fail as well.
    """
    outcomes: Any = client.forecast_many(
        ((work, work.candles) for work in works),
        in_order=False,
        max_in_flight=max_in_flight,
        timeout_s=timeout_s,
        forget=True,
        **options.for_client(),
    )
    with closing(outcomes):
        for outcome in outcomes:
            if outcome.error is not None and outcome.error.code in OF_ALL:
                raise outcome.error
            yield FileOutcome(outcome.key, outcome.job_id, outcome.result, outcome.error)
