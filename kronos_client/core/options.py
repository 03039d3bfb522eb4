"""The options of the clients' methods: their names and types, and what ``help`` and editors show of them."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import date
from functools import wraps
from inspect import Parameter, cleandoc, iscoroutinefunction, signature
from numbers import Integral, Real
from pathlib import Path
from types import NoneType
from typing import Any, Final, Literal, TypedDict, TypeVar, cast, get_args, is_typeddict

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.forecast import ForecastJob, Output, Sampling
from kronos_client.contract.names import ContextPolicy, Priority
from kronos_client.core.series import CandleSource
from kronos_model.bars.files.options import NO_OPTIONS, ReadOptions
from kronos_model.bars.missing import Missing
from kronos_model.checkpoints.names import did_you_mean
from kronos_model.text import excerpt

SAMPLE_COUNT: Final = 100
"""Paths for each series by default: the outer quantiles of 30 change much from seed to seed."""

DataSource = str | Sequence[str] | CandleSource | Sequence[CandleSource] | Mapping[str, CandleSource]
"""Paths below the workers' data folder; or candles, or several, in a list or by the instruments' names."""


class CommonOptions(TypedDict, total=False):
    """Options of the forecasts of a job or a feed. Defaults are the contract's, but for ``sample_count``.

    Attributes:
        pred_len: Bars to forecast; a job with ``future_timestamps`` needs none.
        calendar: By which future timestamps are found: an exchange's code such as "XNYS" (needs the extra
            ``calendars``), "24/7" or "weekdays".
        lookback: The last bars of each series that the model reads. By default what its context leaves, up
            to the longest of its training; the result has the number.
        missing: What happens to bars without prices (NaN, or zero without volume). "error" refuses them,
            "drop" leaves them out, "ffill" gives them the close before, and adds bars that are not there.
        timezone: IANA zone that inferred timestamps follow; by default that of the candles' times.
        temperature: Below 1 calmer, above 1 wilder.
        top_k: Only the k most likely tokens; 0 for all.
        top_p: Only the most likely tokens of this total probability; below 1, intervals are too narrow.
        sample_count: Paths to draw for each series; fewer by default where the limits allow fewer.
        seed: Of the draws; by default the job's id gives it.
        quantiles: Levels of the quantiles over the paths, or one level.
        repair: Whether high, low, volume and amount are made consistent.
        calibrated: Whether the model's calibration corrects the quantiles.
        events: Events whose chance it gives, or one: "close>last at 24", "close<last-2% at end" or
            "high>=195.5 by 10" (at bar 10 or before).
        statistics: Whether it gives return, realised volatility and maximum drawdown over the paths.
        model: By default the worker's own; or one of its further models, or a registered one.
        device: Where to compute: "auto", "cpu", "cuda", "cuda:N" or "mps".
        allow_fallback: Whether the CPU may compute if no GPU worker is ready.
        priority: "high", "normal" or "low".
        context_policy: "exact", or "rolling" for an approximation that stays fast beyond the context.
    """

    pred_len: int | None
    lookback: int | Literal["auto"] | None
    missing: Missing
    calendar: str | None
    timezone: str | None
    temperature: float
    top_k: int
    top_p: float
    sample_count: int
    seed: int | None
    quantiles: float | Sequence[float]
    repair: bool
    calibrated: bool
    events: str | Sequence[str]
    statistics: bool
    model: str | None
    device: str
    allow_fallback: bool
    priority: Priority
    context_policy: ContextPolicy


class ForecastOptions(CommonOptions, total=False):
    """Options of a forecast. What a feed shows in its updates too stands in ``CommonOptions``.

    Attributes:
        series_ids: Names of the series; by default those of a mapping, else "0", "1", ….
        timestamps, future_timestamps: Of the only series, or a list of lists for several. By default, future
            ones follow the lookback's spacing.
        paths: Whether the result has every path.
        stream: Whether ``progress`` has the bars that are done so far.
        deadline_s: Seconds from submission until the job is given up.
    """

    series_ids: Sequence[str] | None
    timestamps: Iterable[Any] | None
    future_timestamps: Iterable[Any] | None
    paths: bool
    stream: bool
    deadline_s: float | None


class SendingOptions(TypedDict, total=False):
    """Options of sending one job.

    Attributes:
        job_id: The id to use. The same content may be submitted again under it: a job has one outcome.
        retry_for_s: Seconds (0) during which it is submitted again, with the same id, if the queue is full,
            Redis does not answer, or its answer was lost.
    """

    job_id: str | None
    retry_for_s: float


class SubmitOptions(ForecastOptions, SendingOptions, total=False):
    """Options of one forecast job."""


class ManyOptions(ForecastOptions, total=False):
    """Options of ``forecast_many``, for all items that have no others.

    Attributes:
        in_order: Outcomes in the items' order (True), or each as soon as it is ready.
        max_in_flight: The most items that are enqueued, or done but not yet yielded (64). It bounds memory
            here and in Redis.
        timeout_s: Seconds for each item from its submission. After it, the item is cancelled with the error
            TIMEOUT.
        retry_for_s: Seconds (600) during which an item is submitted again if the queue is full, or Redis
            does not answer.
        forget: Whether to delete each result from Redis once it is read.
        job_id_prefix: Items have the ids ``<prefix>-<key>``; without a key, its index. To continue an
            interrupted run, use the same prefix: items that are done are not computed again while their
            results are kept, and failed items stay failed.
    """

    in_order: bool
    max_in_flight: int
    timeout_s: float | None
    retry_for_s: float
    forget: bool
    job_id_prefix: str | None


class LongOptions(ManyOptions, total=False):
    """Options of ``predict_df``.

    Attributes:
        id_column, timestamp_column: "unique_id" and "ds" by default.
        target: The column or columns to return, "close" by default.
        on_error: "raise" (default) ends with the first error, which names its series; "skip" leaves failed
            series out, and the frame's ``attrs["errors"]`` has why.
    """

    id_column: str
    timestamp_column: str
    target: str | Sequence[str]
    on_error: Literal["raise", "skip"]


class FeedOptions(CommonOptions, total=False):
    """Options of a feed: those of its forecasts, and its own.

    Attributes:
        bar_time: Whether a bar's time is its "start" (default) or its "end".
        closed_only: Whether bars that have not ended are held back (True).
        corrections: The last bars of a series that an append may change (3).
        max_bars: The window of each series (512): the bars that are kept.
        keep: The columns whose mean and quantiles are kept ("close"), or several.
        calibration: "adaptive" widens and narrows the close's quantiles by how the feed's past ones held.
    """

    bar_time: Literal["start", "end"]
    closed_only: bool
    corrections: int
    max_bars: int
    keep: str | Sequence[str]
    calibration: Literal["adaptive"] | None


class FinetuneOptions(SendingOptions, total=False):
    """Options of a finetuning job.

    Attributes:
        data: Paths of files or folders below the workers' data folder, one or a list; or the candles, as
            ``submit`` takes them; or a mapping from instruments' names to candles. By default the config's
            ``data.path``, below the workers' data folder.
        device: Where to train; for auto (the default), the config's ``training_device``.
        allow_fallback: Whether the CPU may train if no GPU worker for finetuning is ready (default True).
        processes: Processes of one machine that train together, each on its own GPU (default 1).
        deadline_s: Seconds from submission until the job is given up.
        priority: "high", "normal" or "low".
    """

    data: DataSource | None
    device: str
    allow_fallback: bool
    processes: int | None
    deadline_s: float | None
    priority: Priority


class WindowChoice(TypedDict, total=False):
    """What every backtest may ask for.

    Attributes:
        windows: The most windows of each instrument (40), evenly spread, or with a stride the last ones.
        stride: Bars from one window's forecast to the next one's.
        lookback: Bars that the models read; by default the fewest that one of them reads by itself.
        horizon: Bars to forecast (24).
        samples: Paths of each forecast (30).
        seed: Of all sampling (0).
        top: Instruments on each side of the portfolio (5), if there are several at common times.
        cost_bps: Its costs of each trade (10), in hundredths of a per cent of what is bought or sold.
        start, end: Only windows whose forecast bars lie between these times.
        models: Names of models, by default the workers' own alone.
    """

    windows: int | None
    stride: int | None
    lookback: int | Literal["auto"] | None
    horizon: int
    samples: int
    seed: int
    top: int
    cost_bps: float
    start: date | None
    end: date | None
    models: str | Sequence[str | None] | None


class BacktestJobOptions(WindowChoice, SendingOptions, total=False):
    """Options of a backtest that workers run.

    Attributes:
        reading: How to read files: ``ReadOptions``, or a mapping like it.
        deadline_s: Seconds from submission until the job is given up.
        priority: Of this job; its forecasts have low priority.
    """

    reading: ReadOptions | Mapping[str, Any]
    deadline_s: float | None
    priority: Priority


class BacktestArguments(WindowChoice, total=False):
    """Options of a backtest that the caller's process runs.

    Attributes:
        reading: How to read files.
        fresh: Whether to repeat the forecasts that are already in the output.
        model_folder: The workers' own, which has the lookback of versions that none has loaded.
    """

    reading: ReadOptions
    fresh: bool
    model_folder: str | Path | None


DEFAULTS: Final[dict[str, Any]] = {
    "in_order": True, "max_in_flight": 64, "forget": False,
    "id_column": "unique_id", "timestamp_column": "ds", "target": "close", "on_error": "raise",
    "bar_time": "start", "closed_only": True, "corrections": 3, "max_bars": 512, "keep": "close",
    "horizon": 24, "samples": 30, "seed": 0, "top": 5, "cost_bps": 10.0,
    "reading": NO_OPTIONS, "fresh": False,
}  # fmt: skip
"""Of the options that are not the contract's for a forecast."""
RETRY_FOR_S: Final = 600.0
"""Of ``forecast_many``: long enough for Redis to restart."""


Method = TypeVar("Method", bound=Callable[..., Any])

_DEFAULTS: Final = {
    name: field.default
    for model in (ForecastJob, Sampling, Output)
    for name, field in model.model_fields.items()
    if field.default is not None
} | {"sample_count": SAMPLE_COUNT, "retry_for_s": 0.0, **DEFAULTS}


def with_options(options: type, refused: Iterable[str] = ()) -> Callable[[Method], Method]:
    """Show each option of a TypedDict in the signature and the docstring of a method with ``**options``.

    Other options are TypeErrors, but for those that the method itself refuses.
    """
    names = options.__annotations__
    defaults = _DEFAULTS | ({"retry_for_s": RETRY_FOR_S} if "in_order" in names else {})
    parts = [kind for kind in globals().values() if is_typeddict(kind)]
    parts = [part for part in parts if part.__annotations__.keys() <= names.keys()]
    texts = [cleandoc(part.__doc__ or "").partition("Attributes:\n")[2] for part in parts]

    def show(method: Method) -> Method:
        shown = signature(method)
        own = [one for one in shown.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
        added = [
            Parameter(
                name,
                Parameter.KEYWORD_ONLY,
                default=None if NoneType in get_args(kind) else defaults[name],
                annotation=kind,
            )
            for name, kind in names.items()
        ]
        known = [one.name for one in (*own, *added) if one.kind is Parameter.KEYWORD_ONLY]

        def check(given: Mapping[str, Any]) -> None:
            check_options([name for name in given if name not in (*shown.parameters, *refused)], known)
            check_waiting(**given)

        @wraps(method)
        def checked(*args: Any, **given: Any) -> Any:
            check(given)
            return method(*args, **given)

        @wraps(method)
        async def awaited(*args: Any, **given: Any) -> Any:
            check(given)
            return await method(*args, **given)

        final: Any = awaited if iscoroutinefunction(method) else checked
        final.__signature__ = shown.replace(parameters=[*own, *added])
        final.__doc__ = "\n".join([cleandoc(method.__doc__ or ""), "", "Options:", *filter(None, texts)])
        return cast("Method", final)

    return show


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real) and not math.isnan(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, Integral) and int(value) >= 1


_WAITING: Final[dict[str, tuple[str, Callable[[Any], bool]]]] = {
    "timeout_s": ("a number of seconds or None", lambda value: value is None or _is_number(value)),
    "retry_for_s": ("a number of seconds", _is_number),
    "max_in_flight": ("a whole number of at least 1", _is_count),
    "on_progress": ("a function or None", lambda value: value is None or callable(value)),
    "forget": ("true or false", lambda value: isinstance(value, bool)),
    "in_order": ("true or false", lambda value: isinstance(value, bool)),
}
"""What the options of sending and waiting may be: no worker checks them."""


def check_waiting(**options: Any) -> None:
    """Raises JobError BAD_TYPE or BAD_VALUE for an option of sending or waiting that cannot be used."""
    for name in options.keys() & _WAITING:
        (expected, is_usable), value = _WAITING[name], options[name]
        if not is_usable(value):
            is_near = "number" in expected and not isinstance(value, bool) and isinstance(value, Real)
            code = ErrorCode.BAD_VALUE if is_near else ErrorCode.BAD_TYPE
            raise JobError(code, f"{name} must be {expected}, not {excerpt(value)}", name)


def check_options(options: Iterable[str], known: Collection[str]) -> None:
    """Raises TypeError for an option that is none of the ``known`` ones."""
    for name in options:
        if name not in known:
            nearest = did_you_mean(name, known) or "."
            raise TypeError(f"unknown option {name}{nearest} The options are {', '.join(sorted(known))}")
