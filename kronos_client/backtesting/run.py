"""One run of a backtest: its candles and lookback, the jobs that are left, their outcomes, its report."""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from urllib.parse import quote

import numpy as np

from kronos_client.backtesting.store import ForecastStore, earlier_lookback
from kronos_client.backtesting.window_plan import MIN_LOOKBACK, WINDOWS_PER_JOB, BacktestOptions, BacktestPlan
from kronos_client.contract.dataframes import plain_candles
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.forecast import auto_lookback
from kronos_client.contract.model_info import ModelInfo
from kronos_client.contract.worker_status import AnyWorkerStatus, ForecastWorkerStatus
from kronos_client.core.dispatcher import Dispatcher
from kronos_client.core.forecast_request import plain
from kronos_client.core.many import FATAL_CODES, ForecastOutcome
from kronos_client.core.options import BacktestArguments, ForecastOptions
from kronos_client.core.series import named_sources, readable
from kronos_client.redis.routing import choose_queue, why_waiting
from kronos_model.bars.columns import COLUMNS, Instrument, as_columns
from kronos_model.bars.files.options import NO_OPTIONS, VALUE, ReadOptions
from kronos_model.bars.timestamps import write_times
from kronos_model.checkpoints.names import (
    REGISTERED_HERE,
    bundled_names,
    did_you_mean,
    full_name,
)
from kronos_model.errors import CandleFileError
from kronos_model.evaluation.naive import NAIVE_TITLES
from kronos_model.seeds import derive_series_seed

if TYPE_CHECKING:
    from kronos_client.registry.model_registry import ModelRegistry

log = logging.getLogger(__name__)

MAX_PASSES: Final = 2
WORKER_POLL_S: Final = 1.0
"""Seconds between looks for a worker that says the lookback."""

Item = tuple[tuple[int, int], list[dict[str, Any]], ForecastOptions]
"""A job: the numbers of its model and its windows, its series and its options."""


class BacktestRun:
    """Forecasts what is left of a plan and makes the report.

    The items of each of its ``passes`` go to ``forecast_many`` with ``sending``, and each outcome to
    ``take``. A run holds the instruments and a few jobs; its forecasts are on disk.
    """

    def __init__(
        self,
        plan: BacktestPlan,
        folder: Path,
        workers: Sequence[AnyWorkerStatus] = (),
        *,
        fresh: bool = False,
    ) -> None:
        max_in_flight = _max_in_flight(workers, plan.options.samples)
        self.sending: Any = {"in_order": False, "forget": True, "max_in_flight": max_in_flight}
        self.plan, self.folder = plan, folder
        self.store = ForecastStore(folder, plan.fingerprint, fresh=fresh)
        self.store.about("lookback", plan.options.lookback)
        self._jobs = plan.jobs()
        self._done = [self.store.done(model) for model in range(len(plan.options.models))]
        self.failed: dict[str, dict[str, Any]] = {}

    @property
    def num_forecasts(self) -> int:
        """All forecasts of the backtest: windows times models."""
        return len(self.plan.windows) * len(self._done)

    @property
    def num_done(self) -> int:
        """Forecasts that are on disk."""
        return sum(map(len, self._done))

    @property
    def common_windows(self) -> Sequence[int]:
        """The windows that every model has forecast."""
        return sorted(set.intersection(*self._done))

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    def items(self) -> Iterator[Item]:
        """The jobs that are left, as ``forecast_many`` takes them: ordinary jobs of low priority.

        A job's content depends on the plan alone, so a forecast is the same whatever run computes it.
        """
        options = self.plan.options
        for model, name in enumerate(options.models):  # one after the other: each takes room in the workers
            for number, windows in enumerate(self._jobs):
                if self._done[model].issuperset(windows):
                    continue
                shown = [self.plan.window(window) for window in windows]
                times = [list(write_times(window.wall, window.instants, window.is_aware)) for window in shown]
                series = [
                    as_columns(window.bars[: options.lookback]) | {"timestamps": texts[: options.lookback]}
                    for window, texts in zip(shown, times, strict=True)
                ]
                asked: ForecastOptions = {
                    "model": name,
                    "lookback": options.lookback,
                    "future_timestamps": [texts[options.lookback :] for texts in times],
                    "sample_count": options.samples,
                    "seed": derive_series_seed(options.seed, number),
                    "quantiles": (),
                    "paths": True,
                    "priority": "low",
                }
                yield (model, number), series, asked

    def passes(self) -> Iterator[Iterator[Item]]:
        """The jobs that are left, and once more those that failed.

        A worker or Redis may have failed, or the room for a model was still in use by another one.
        """
        for _ in range(MAX_PASSES):
            self.failed.clear()
            yield self.items()
            if not self.failed:
                return

    def take(self, outcome: ForecastOutcome) -> None:
        """Store a job's forecasts, or count its error.

        Raises:
            JobError: Every other job would fail as well; a model is not the one that computed the forecasts
                on disk; or the disk is full.
        """
        key: Any = outcome.key  # of ``items``
        model, number = key
        if (error := outcome.error) is not None:
            if error.code in FATAL_CODES:
                raise error
            failure = self.failed.setdefault(error.code, {"windows": 0, "message": error.message})
            failure["windows"] += len(self._jobs[number])
            return
        result = outcome.unwrap()
        self._check_model(model, result.model)
        about_model = [text for text in result.warnings if text == result.caution or REGISTERED_HERE in text]
        if about_model:
            self.store.about(f"caution {model}", " ".join(about_model))
        paths = [
            np.stack([np.asarray(series.paths[name], np.float32) for name in COLUMNS], axis=-1)
            for series in result.series
            if series.paths is not None
        ]
        self.store.put(model, zip(self._jobs[number], paths, strict=True))
        self._done[model].update(self._jobs[number])

    def _check_model(self, model: int, info: ModelInfo) -> None:
        """Refuse to mix the forecasts of two models, for example after the workers' model was changed."""
        own = info.model_dump(mode="json")
        before = self.store.about(f"model {model}", own)
        if before != own:
            raise JobError(
                ErrorCode.INVALID_INPUT,
                f"the workers' model is {_model_text(own)}, and the forecasts in {self.folder} are of "
                f"{_model_text(before)}: choose another folder, or start anew",
                "output",
            )

    def names(self) -> list[str]:
        """The models' names in the report: as asked, or the id of the workers' own."""
        asked = self.plan.options.models
        own = str(self.store.about(f"model {asked.index(None)}", None)["id"]) if None in asked else ""
        if own in asked or own in NAIVE_TITLES:
            own += " (workers' own)"
        return [name or own for name in asked]

    def report(self, on_batch: Callable[[], object] = lambda: None) -> dict[str, Any]:
        """Score the windows that every model has; writes report.json, report.html and forecasts.parquet.

        ``on_batch`` is called before each batch of windows. If it raises, the report ends.
        """
        from kronos_client.backtesting.reporting import write_report  # SciPy and Matplotlib

        if not self.common_windows:
            reason = next(iter(self.failed.values()), {"message": "no window was forecast"})["message"]
            reason = reason.replace("pred_len", "horizon")  # as a backtest calls it
            raise JobError(ErrorCode.INVALID_INPUT, f"there is nothing to score: {reason}")
        return write_report(self, on_batch)


def _max_in_flight(workers: Sequence[AnyWorkerStatus], samples: int) -> int:
    """Jobs that fill all slots twice, at least two a worker.

    More jobs at once would all progress slowly, and a stopped run would lose them all.
    """
    forecasting = [worker for worker in workers if isinstance(worker, ForecastWorkerStatus)]
    num_paths = 2 * sum(worker.slots for worker in forecasting)
    return max(2, 2 * len(forecasting), math.ceil(num_paths / (WINDOWS_PER_JOB * samples)))


def _model_text(info: Mapping[str, Any]) -> str:
    return " ".join(str(info[part]) for part in ("id", "revision") if info.get(part))


MAX_NAME_CHARS: Final = 100
"""Of an instrument in the name of its temporary file."""


class BacktestInput(NamedTuple):
    """What a backtest reads; ``skipped`` and ``remarks`` as of ``BacktestPlan``."""

    instruments: Sequence[Instrument]
    skipped: Mapping[str, str] = {}
    remarks: Sequence[str] = ()


def begin_backtest(
    candles: Any, output: str | Path, dispatcher: Dispatcher, options: BacktestArguments
) -> Iterator[BacktestRun | None]:
    """Read the candles, find the lookback, and open what an earlier run left in ``output``.

    Yields None, and logs why, while the lookback is unknown and no worker is ready; then the run.
    """
    try:
        # What a run imports later, so that it does not end after its forecasts for want of a package.
        from kronos_client.backtesting import reporting  # noqa: F401
        from kronos_client.registry.model_registry import ModelRegistry
        from kronos_model.bars.files import instruments  # noqa: F401
    except ImportError as error:
        text = f"a backtest needs the package {error.name}: install kronos-worker[cli]"
        raise JobError(ErrorCode.NOT_INSTALLED, text) from None
    given = plain(**options)
    read = partial(read_candles, candles, given.pop("reading", NO_OPTIONS))
    folder = given.pop("model_folder", None)
    registry = folder and ModelRegistry(Path(folder))
    said: str | None = None
    while True:
        workers = dispatcher.workers()
        try:
            run = open_backtest(read, Path(output), workers, registry, **given)
        except JobError as error:
            queue = choose_queue("auto", True, workers, names=dispatcher.settings.queue_names)
            reason = why_waiting(queue, workers)
            is_unknown = (error.code, error.field) == (ErrorCode.MISSING_FIELD, "lookback")
            if not is_unknown or reason is None:
                raise
            if reason != said:
                log.warning("%s", said := reason)
        else:
            yield run
            return
        yield None


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
    horizon, is_chosen = options.get("horizon", BacktestOptions.horizon), lookback not in (None, "auto")
    if not is_chosen:
        lookback = None if fresh else earlier_lookback(folder)
        is_chosen = lookback is not None
    if lookback is None:
        lookback = find_lookback(workers, models, horizon, registry)
    candles, lookback = _fitting(read(), lookback, horizon, may_shorten=not is_chosen)
    asked: Any = {"lookback": lookback, "models": models, **options}
    plan = BacktestPlan(candles.instruments, BacktestOptions(**asked), candles.skipped, candles.remarks)
    return BacktestRun(plan, folder, workers, fresh=fresh)


def _fitting(
    candles: BacktestInput, lookback: Any, horizon: Any, *, may_shorten: bool
) -> tuple[BacktestInput, Any]:
    """Leave out, by name, the instruments that are too short for one window, and return the lookback.

    If fewer than half would remain, a lookback that nobody chose is shortened first.
    """
    if not (isinstance(lookback, int) and isinstance(horizon, int)) or not candles.instruments:
        return candles, lookback  # the plan refuses them
    remarks = list(candles.remarks)
    room = sorted(map(len, candles.instruments))[len(candles.instruments) // 2] - horizon  # half have as much
    if may_shorten and MIN_LOOKBACK < room < lookback:
        text = f"the lookback is {room // 2} bars instead of {lookback}"
        remarks.append(f"{text}, for which fewer than half of the instruments are long enough")
        lookback = room // 2  # the other half is for several windows
    needed = lookback + horizon
    kept = [each for each in candles.instruments if len(each) >= needed]
    short = {each.name: len(each) for each in candles.instruments if len(each) < needed}
    why = {name: f"it has {number} bars, and a window takes {needed}" for name, number in short.items()}
    if not kept:
        return candles, lookback  # the plan says so
    return BacktestInput(kept, {**candles.skipped, **why}, remarks), lookback


def read_candles(candles: Any, reading: ReadOptions = NO_OPTIONS) -> BacktestInput:
    """Instruments from files and folders, or from what a forecast takes, which is read as files are."""
    from kronos_model.bars.files.instruments import read_instruments  # pyarrow

    if isinstance(candles, str | Path):
        candles = [candles]
    with readable("the candles"):
        is_data = isinstance(candles, Mapping) or hasattr(candles, "columns")
        if not is_data and all(isinstance(path, str | Path) for path in candles):
            try:
                instruments, report = read_instruments([str(path) for path in candles], reading)
            except CandleFileError as error:
                raise JobError(error.code, error.message, error.field, error.details) from error
            return BacktestInput(instruments, report.skipped, report.remarks)
        remarks = list[str]()
        if reading == ReadOptions(missing=reading.missing):  # other options name the frames' own titles
            candles = plain_candles(candles, reading.missing, notes=remarks)
        names, sources = named_sources(candles)
        with TemporaryDirectory() as folder:
            files = [
                f"{folder}/{index} {quote(name, safe='')[:MAX_NAME_CHARS]}.parquet"
                for index, name in enumerate(names)
            ]

            def without_paths(text: str) -> str:
                for file, name in zip(files, names, strict=True):
                    text = text.replace(file, f"the frame {name!r}")
                return text

            for file, source in zip(files, sources, strict=True):
                _write(source, file)
            try:
                instruments, report = read_instruments(files, reading)
            except CandleFileError as error:
                text = without_paths(error.message)
                raise JobError(error.code, text, error.field, error.details) from error
            remarks += map(without_paths, report.remarks)
        known = {Path(file).stem: name for file, name in zip(files, names, strict=True)}
        named = [replace(each, name=known.get(each.name, each.name)) for each in instruments]
        return BacktestInput(sorted(named, key=lambda each: each.name), {}, remarks)


def _write(source: Any, file: str) -> None:
    """Write a frame of pandas or polars, a series of values, columns or records as Parquet."""
    import pandas as pd  # reading files needs it already

    if hasattr(source, "write_parquet"):
        source.write_parquet(file)
    elif hasattr(source, "to_frame"):
        source.to_frame(VALUE).to_parquet(file)
    else:
        pd.DataFrame(source).to_parquet(file)


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
        known = known or _announced(workers, full_name(name or ""))
        if known.get("max_context") is None:
            holds = f"no live worker holds {f'the model {name}' if name else 'a model'}"
            spelling = "check its spelling and version, " if name else ""
            start = "wait until the one that is loading is ready" if _is_any_loading(workers) else "start one"
            remedy = f"{spelling}{start}, or give the workers' model folder or the lookback"
            message = f"{holds}, so its lookback is unknown: {remedy}"
            if name:
                message += did_you_mean(name, model_names(name, workers, registry))
            raise JobError(ErrorCode.MISSING_FIELD, message, "lookback")
        trained, least = known.get("lookback"), known.get("min_lookback")
        found.append(auto_lookback(trained, known["max_context"], horizon, least))
    return min(found)


def model_names(
    name: str, workers: Sequence[AnyWorkerStatus], registry: "ModelRegistry | None" = None
) -> Sequence[str]:
    """The models that are known here: of live workers, bundled, and registered if ``name`` may be one."""
    announced = [model.id for worker in workers for model in getattr(worker, "models", ())]
    return [*announced, *bundled_names(), *(registry.names(name) if registry is not None else ())]


def _announced(workers: Sequence[AnyWorkerStatus], name: str | None) -> dict[str, Any]:
    """What a worker that holds a model announces about it; empty without one."""
    forecasting = [worker for worker in workers if isinstance(worker, ForecastWorkerStatus)]
    held = (model for worker in forecasting for model in worker.named(name))
    return next((model.model_dump() for model in held if model.max_context is not None), {})


def _is_any_loading(workers: Sequence[AnyWorkerStatus]) -> bool:
    return any(isinstance(worker, ForecastWorkerStatus) and worker.state == "loading" for worker in workers)


def _on_disk(name: str | None, registry: "ModelRegistry | None") -> Mapping[str, Any]:
    """The metadata of a registered or bundled model; empty for others."""
    from kronos_model.checkpoints.source import read_metadata  # huggingface_hub

    registered = registry.resolve(name) if registry is not None and name is not None else None
    if registered is not None:
        return registered.metadata.model_dump()
    return read_metadata(name) if name is not None and full_name(name) in bundled_names() else {}
