"""A forecast job: its fields, their defaults and ranges."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from kronos_client.contract.columns import Column
from kronos_client.contract.names import SCHEMA_VERSION, ContextPolicy, Priority
from kronos_model.bars.columns import COLUMNS
from kronos_model.bars.missing import Missing
from kronos_model.devices import DEVICE_PATTERN
from kronos_model.forecast import WANTED, Event
from kronos_model.seeds import MAX_SEED

MAX_QUANTILES: Final = 32
MAX_EVENTS: Final = 32
MAX_EVENT_CHARS: Final = 100
MAX_COUNT: Final = 2**31 - 1


def _printable(text: str) -> str:
    if not text.isprintable():
        raise PydanticCustomError("not_printable", "printable characters only")
    return text


def _distinct(levels: tuple[float, ...]) -> tuple[float, ...]:
    if len(set(levels)) < len(levels):
        raise PydanticCustomError("not_distinct", "levels that differ from each other")
    return levels


def _event(value: Any) -> Event:
    if not isinstance(value, str) or len(value) > MAX_EVENT_CHARS:
        raise PydanticCustomError("event", WANTED)
    try:
        return Event.parse(value)
    except ValueError:
        raise PydanticCustomError("event", WANTED) from None


def _lookback(value: Any) -> Any:
    if value != "auto" and not (type(value) is int and 1 <= value <= MAX_COUNT):
        raise PydanticCustomError("lookback", "a number of bars, at least 1, or 'auto'")
    return value


Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_printable)]
Seed = Annotated[int, Field(ge=0, le=MAX_SEED)]
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Lookback = Annotated[
    int | Literal["auto"],
    PlainValidator(_lookback),
    WithJsonSchema({"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 1, "maximum": MAX_COUNT}]}),
]
TimestampTexts = Annotated[tuple[str, ...], Field(strict=False, fail_fast=True)]
Device = Annotated[str, Field(pattern=DEVICE_PATTERN)]
Quantile = Annotated[float, Field(gt=0, lt=1)]
EventText = Annotated[
    Event,
    PlainValidator(_event),
    PlainSerializer(lambda event: event.text, return_type=str),
    WithJsonSchema({"type": "string", "maxLength": MAX_EVENT_CHARS, "examples": ["close>last+2% at 24"]}),
]


class WireModel(BaseModel):
    """Frozen and strict: no unknown fields, and no conversions but of integers to numbers."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


class CandleInput(WireModel):
    """One instrument's candles."""

    id: Name = Field(description="names the series in the result; unique in its job")
    timestamps: TimestampTexts = Field(description="ISO 8601, one a bar, strictly ascending")
    open: Column
    high: Column
    low: Column
    close: Column
    volume: Column | None = Field(default=None, description="0 if left out")
    amount: Column | None = Field(default=None, description="volume times the mean price if left out")

    def columns(self) -> dict[str, Column]:
        """The columns that were given, as on the wire."""
        return {name: column for name in COLUMNS if (column := getattr(self, name)) is not None}


def check_ids(candles: Sequence[CandleInput], place: str) -> None:
    """Refuse two instruments of one job, in its field ``place``, with the same id."""
    seen: set[str] = set()
    for index, instrument in enumerate(candles):
        if instrument.id in seen:
            context = {"field": f"{place}.{index}.id"}
            text = "is the id of another one too: give each its own"
            raise PydanticCustomError("duplicate_id", text, context)
        seen.add(instrument.id)


class SeriesInput(CandleInput):
    """One instrument's lookback."""

    future_timestamps: TimestampTexts | None = Field(
        default=None,
        description="of the bars to forecast; by the calendar, else from the lookback's spacing, if left out",
    )
    calendar: Annotated[str, Field(max_length=40)] | None = Field(
        default=None,
        description="of the bars to forecast, if future_timestamps are left out: an exchange such as XNYS, "
        "24/7 or weekdays",
    )
    timezone: Annotated[str, Field(max_length=100)] | None = Field(
        default=None, description="IANA time zone whose clock the timestamps follow"
    )
    seed: Seed | None = Field(default=None, description="instead of the one derived from the job's seed")


class Sampling(WireModel):
    """How the future is drawn."""

    temperature: float = Field(default=1.0, ge=0.01, le=100, description="below 1 calmer, above 1 wilder")
    top_k: int = Field(default=0, ge=0, le=MAX_COUNT, description="only the k most likely tokens; 0 for all")
    top_p: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="only the most likely tokens of this total probability; below 1 narrows intervals",
    )
    sample_count: Count = Field(default=1, description="paths to draw for each series")
    seed: Seed | None = Field(default=None, description="derived from the task's id if left out")


class Output(WireModel):
    """What comes back."""

    quantiles: Annotated[
        tuple[Quantile, ...],
        Field(strict=False, max_length=MAX_QUANTILES),
        FailFast(),
        AfterValidator(_distinct),
    ] = Field(default=(0.1, 0.5, 0.9), description="levels of the quantiles over the paths")
    paths: bool = Field(default=False, description="whether every path comes back")
    calibrated: bool = Field(
        default=False,
        description="whether the model's calibration corrects the quantiles; NOT_CALIBRATED without one",
    )
    events: Annotated[tuple[EventText, ...], Field(strict=False, max_length=MAX_EVENTS), FailFast()] = Field(
        default=(),
        description="what the chance is wanted of, such as close>last+2% at 24 or high>=195 by end",
    )
    statistics: bool = Field(
        default=False, description="whether return, realised volatility and maximum drawdown come back"
    )
    repair: bool = Field(default=True, description="whether high, low, volume and amount are made consistent")
    stream: bool = Field(default=False, description="whether progress has the bars that are done so far")
    scoring: bool = Field(default=False, description="whether the quantiles by which feeds score come back")


class ForecastJob(WireModel):
    """One job for the task ``kronos.forecast``: one or more series with a common horizon."""

    schema_version: int = Field(default=SCHEMA_VERSION, ge=1, le=SCHEMA_VERSION)
    series: Annotated[tuple[SeriesInput, ...], Field(strict=False, min_length=1)]
    lookback: Lookback = Field(
        default="auto",
        description="the last bars of each series that the model reads; auto: what its context leaves, up to "
        "the longest of its training, or those of its calibration if output.calibrated",
    )
    missing: Missing = Field(
        default="error",
        description="bars without prices (NaN, null, or zero without volume): refuse, fill or leave them out",
    )
    pred_len: Count | None = Field(
        default=None, description="bars to forecast; may be left out if future_timestamps are given"
    )
    sampling: Sampling = Sampling()
    output: Output = Output()
    model: Name | None = Field(
        default=None, description="the worker's own if left out, or a registered one: name, name@version"
    )
    device: Device = Field(default="auto", description="auto, cpu, cuda, cuda:N or mps")
    allow_fallback: bool = Field(
        default=True, description="whether the CPU may compute if no GPU worker is ready"
    )
    deadline_s: float | None = Field(
        default=None, gt=0, description="seconds from submitted_at, else from receipt"
    )
    submitted_at: float | None = Field(default=None, ge=0, description="Unix time in seconds")
    priority: Priority = "normal"
    context_policy: ContextPolicy = Field(
        default="exact",
        description="once the context is full: exact computes it anew for every bar, as the reference does; "
        "rolling is an approximation that drops the oldest bar",
    )

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        check_ids(self.series, "series")
        expected, source = self.pred_len, "pred_len"
        for index, series in enumerate(self.series):
            if series.future_timestamps is None:
                continue
            actual = len(series.future_timestamps)
            if actual == 0 or actual != (expected or actual):
                wanted = f"{expected} timestamps to match {source}" if expected else "at least 1 timestamp"
                field = f"series.{index}.future_timestamps"
                context = {"field": field, "wanted": wanted, "actual": actual}
                raise PydanticCustomError("length_mismatch", "must have {wanted}, not {actual}", context)
            if expected is None:
                expected, source = actual, f"series.{index}.future_timestamps"
        if expected is None:
            text = "is missing: add it, or give a series future_timestamps"
            raise PydanticCustomError("missing_field", text, {"field": "pred_len"})
        for index, event in enumerate(self.output.events):
            if (event.bar or 0) > expected:
                context = {"field": f"output.events.{index}", "bar": event.bar, "horizon": expected}
                text = "asks for bar {bar}, but {horizon} are forecast: ask for more bars"
                raise PydanticCustomError("late_event", text, context)
        return self

    def num_bars_read(
        self, trained_lookback: int | None, max_context: int, min_lookback: int | None = None
    ) -> int:
        """The most bars of a series that a model reads."""
        if self.lookback != "auto":
            return self.lookback
        return auto_lookback(trained_lookback, max_context, self.horizon, min_lookback)

    @property
    def horizon(self) -> int:
        """Bars to forecast, the same for every series."""
        lengths = (len(series.future_timestamps) for series in self.series if series.future_timestamps)
        return self.pred_len or next(lengths)


def auto_lookback(
    trained_lookback: int | None, max_context: int, horizon: int, min_lookback: int | None = None
) -> int:
    """The bars that "auto" reads: what the context leaves, at least half, and no more than in training.

    A model whose training had a single lookback reads just that.
    """
    if trained_lookback is not None and min_lookback in (None, trained_lookback):
        return trained_lookback
    room = max(max_context - horizon, max_context // 2, 1)
    return room if trained_lookback is None else min(room, trained_lookback)
