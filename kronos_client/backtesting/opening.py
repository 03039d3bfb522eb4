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
from kronos_model.bars.files.options import NO_OPTIONS, ReadOptions
from kronos_model.bars.instrument import Instrument
from kronos_model.errors import CandleFileError

if TYPE_CHECKING:
    from kronos_client.registry.model_registry import ModelRegistry

MAX_NAME_CHARS: Final = 100
"""Of an instrument in the name of its temporary file."""


LookbackOf = Callable[[str, int], int | None]
"""Returns the bars that a model reads by default for a horizon."""


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
    lookback_of = partial(known_lookback, folder and ModelRegistry(folder))
    return open_backtest(read, Path(output), workers(), lookback_of, **given)


def open_backtest(
    read: Callable[[], BacktestInput],
    folder: Path,
    workers: Sequence[AnyWorkerStatus],
    lookback_of: LookbackOf = lambda model, horizon: None,
    *,
    models: str | Sequence[str | None] | None = None,
    lookback: int | Literal["auto"] | None = None,
    fresh: bool = False,
    **options: Any,
) -> BacktestRun:
    """Find the lookback, read the instruments, and open what an earlier run left in the folder.

    Args:
        lookback_of: As of ``find_lookback``.
        options: The other ``BacktestOptions``.
    """
    models = (None,) if models is None else (models,) if isinstance(models, str) else tuple(models)
    if lookback in (None, "auto"):
        lookback = None if fresh else earlier_lookback(folder)
    if lookback is None:
        horizon = options.get("horizon", BacktestOptions.horizon)
        lookback = find_lookback(workers, models, horizon, lookback_of)
    candles = read()
    asked: Any = {"lookback": lookback, "models": models, **options}
    return BacktestRun(
        BacktestPlan(candles.instruments, BacktestOptions(**asked), candles.skipped, candles.remarks),
        folder,
        workers,
        fresh=fresh,
    )


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
        names: dict[str, str] = {}
        with TemporaryDirectory() as folder:
            files: list[str] = []
            for name, frame in candles.items():
                file = f"{len(files)} {quote(str(name), safe='')[:MAX_NAME_CHARS]}"  # shown in errors
                names[file] = str(name)
                files.append(f"{folder}/{file}.parquet")
                frame.to_parquet(files[-1])
            instruments, report = read_instruments(files, reading)
        named = [replace(one, name=names.get(one.name, one.name)) for one in instruments]
        return BacktestInput(sorted(named, key=lambda one: one.name), {}, report.remarks)


def find_lookback(
    workers: Sequence[AnyWorkerStatus],
    models: Sequence[str | None],
    horizon: int,
    lookback_of: LookbackOf = lambda model, horizon: None,
) -> int:
    """The most bars that all these models read by default, from the workers' announcements.

    Args:
        lookback_of: Returns the lookback of a model that no worker has loaded, if it is known.

    Raises:
        JobError: MISSING_FIELD if no live worker holds one of the models.
    """
    found = []
    for name in models:
        lookbacks = filter(None, (_lookback_of(worker, name, horizon) for worker in workers))
        lookback = next(lookbacks, None)
        if lookback is None and name is not None:
            lookback = lookback_of(name, horizon)
        if lookback is None:
            holds = f"no live worker holds {f'the model {name}' if name else 'a model'}"
            spelling = "check its spelling and version, " if name else ""
            message = f"{holds}, so its lookback is unknown: {spelling}start one, or give the lookback"
            raise JobError(ErrorCode.MISSING_FIELD, message, "lookback")
        found.append(lookback)
    return min(found)


def known_lookback(registry: "ModelRegistry | None", name: str, horizon: int) -> int | None:
    """The lookback of a model that no worker has loaded, if it is registered or bundled."""
    from kronos_model.checkpoints.source import bundled_names, read_metadata  # huggingface_hub

    registered = None if registry is None else registry.resolve(name)
    if registered is not None:
        known = registered.metadata.model_dump()
    else:
        known = read_metadata(name) if name in bundled_names() else {}
    if (max_context := known.get("max_context")) is None:
        return None
    return auto_lookback(known.get("lookback"), max_context, horizon, known.get("min_lookback"))


def _lookback_of(worker: AnyWorkerStatus, name: str | None, horizon: int) -> int | None:
    if not isinstance(worker, ForecastWorkerStatus):
        return None
    for index, model in enumerate(worker.models):
        is_wanted = index == 0 if name is None else model.id == name  # the worker's own is the first
        if is_wanted and model.max_context is not None:
            return auto_lookback(model.lookback, model.max_context, horizon, model.min_lookback)
    return None
