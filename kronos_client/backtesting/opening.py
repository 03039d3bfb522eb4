"""Opening a backtest: its candles, its lookback, and what an earlier run of it left."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from urllib.parse import quote

from kronos_client.backtesting.plan import BacktestOptions, BacktestPlan
from kronos_client.backtesting.run import BacktestRun
from kronos_client.backtesting.store import earlier_lookback
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.forecast import auto_lookback
from kronos_client.contract.worker_status import AnyWorkerStatus, ForecastWorkerStatus
from kronos_client.core.forecast_request import check_options, plain
from kronos_client.core.long_request import WindowChoice
from kronos_client.core.reading import readable
from kronos_model.bars.columns import Instrument
from kronos_model.bars.files.options import NO_OPTIONS, ReadOptions
from kronos_model.errors import CandleFileError

if TYPE_CHECKING:
    from kronos_client.registry.model_registry import ModelRegistry

MAX_NAME_CHARS: Final = 100
"""Of an instrument in the name of its temporary file."""


class BacktestInput(NamedTuple):
    """What a backtest reads; ``skipped`` and ``remarks`` as of ``BacktestPlan``."""

    instruments: Sequence[Instrument]
    skipped: Mapping[str, str] = {}
    remarks: Sequence[str] = ()


class BacktestArguments(WindowChoice, total=False):
    """Options of a backtest that the caller's process runs.

    Attributes:
        reading: How to read files.
        fresh: Whether to repeat the forecasts that are already in the output.
        model_folder: The workers' own, which has the lookback of versions that none has loaded.
    """

    reading: ReadOptions
    fresh: bool
    model_folder: Path | None


def begin_backtest(
    candles: Any,
    output: str | Path,
    workers: Callable[[], Sequence[AnyWorkerStatus]],
    options: BacktestArguments,
) -> BacktestRun:
    """Read the candles, find the lookback, and open what an earlier run left in ``output``."""
    from kronos_client.registry.model_registry import ModelRegistry  # httpx2

    check_options(options, BacktestArguments)
    given = plain(**options)
    read = partial(read_candles, candles, given.pop("reading", NO_OPTIONS))
    folder = given.pop("model_folder", None)
    return open_backtest(read, Path(output), workers(), folder and ModelRegistry(folder), **given)


def open_backtest(
    read: Callable[[], BacktestInput],
    folder: Path,
    workers: Sequence[AnyWorkerStatus],
    registry: "ModelRegistry | None" = None,
    *,
    models: str | Sequence[str | None] | None = None,
    lookback: int | Literal["auto"] | None = None,
    fresh: bool = False,
    **options: Any,
) -> BacktestRun:
    """Find the lookback, read the instruments, and open what an earlier run left in the folder.

    Args:
        registry: Has the lookback of versions that no worker has loaded.
        options: The other ``BacktestOptions``.
    """
    models = (None,) if models is None else (models,) if isinstance(models, str) else tuple(models)
    if lookback in (None, "auto"):
        lookback = None if fresh else earlier_lookback(folder)
    if lookback is None:
        horizon = options.get("horizon", BacktestOptions.horizon)
        lookback = find_lookback(workers, models, horizon, registry)
    candles = read()
    asked: Any = {"lookback": lookback, "models": models, **options}
    plan = BacktestPlan(candles.instruments, BacktestOptions(**asked), candles.skipped, candles.remarks)
    return BacktestRun(plan, folder, workers, fresh=fresh)


def read_candles(candles: Any, reading: ReadOptions = NO_OPTIONS) -> BacktestInput:
    """Instruments from files and folders, or from a mapping of DataFrames, which are read as files are."""
    from kronos_model.bars.files.instruments import read_instruments  # pyarrow

    with readable("the candles"):
        if isinstance(candles, str | Path):
            candles = [candles]
        if not isinstance(candles, Mapping):
            try:
                instruments, report = read_instruments([str(path) for path in candles], reading)
            except CandleFileError as error:
                raise JobError(error.code, error.message, error.field, error.details) from error
            return BacktestInput(instruments, report.skipped, report.remarks)
        names = {
            f"{index} {quote(str(name), safe='')[:MAX_NAME_CHARS]}": str(name)  # shown in errors
            for index, name in enumerate(candles)
        }
        with TemporaryDirectory() as folder:
            files = [f"{folder}/{name}.parquet" for name in names]
            for file, frame in zip(files, candles.values(), strict=True):
                frame.to_parquet(file)
            instruments, report = read_instruments(files, reading)
        named = [replace(one, name=names.get(one.name, one.name)) for one in instruments]
        return BacktestInput(sorted(named, key=lambda one: one.name), {}, report.remarks)


def find_lookback(
    workers: Sequence[AnyWorkerStatus],
    models: Sequence[str | None],
    horizon: int,
    registry: "ModelRegistry | None" = None,
) -> int:
    """The most bars that all these models read by default.

    Raises:
        JobError: MISSING_FIELD if one of them is neither held by a live worker nor registered or bundled.
    """
    found = []
    for name in models:
        known = _announced(workers, name) or _on_disk(name, registry)
        if known.get("max_context") is None:
            holds = f"no live worker holds {f'the model {name}' if name else 'a model'}"
            spelling = "check its spelling and version, " if name else ""
            message = f"{holds}, so its lookback is unknown: {spelling}start one, or give the lookback"
            raise JobError(ErrorCode.MISSING_FIELD, message, "lookback")
        trained, least = known.get("lookback"), known.get("min_lookback")
        found.append(auto_lookback(trained, known["max_context"], horizon, least))
    return min(found)


def _announced(workers: Sequence[AnyWorkerStatus], name: str | None) -> dict[str, Any]:
    """What a worker that holds a model announces about it; empty without one."""
    held = (
        one for worker in workers if isinstance(worker, ForecastWorkerStatus) for one in worker.named(name)
    )
    return next((model.model_dump() for model in held if model.max_context is not None), {})


def _on_disk(name: str | None, registry: "ModelRegistry | None") -> Mapping[str, Any]:
    """The metadata of a registered or bundled model; empty for others."""
    from kronos_model.checkpoints.source import bundled_names, read_metadata  # huggingface_hub

    registered = registry.resolve(name) if registry is not None and name is not None else None
    if registered is not None:
        return registered.metadata.model_dump()
    return read_metadata(name) if name in bundled_names() else {}
