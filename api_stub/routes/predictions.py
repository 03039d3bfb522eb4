"""Requests and answers of predictions, with the fields of the reference service."""

from datetime import datetime
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from api_stub.problems import CANDLE_KINDS
from kronos_client.contract.forecast import MAX_EVENTS, MAX_QUANTILES
from kronos_client.contract.model_info import EngineKind
from kronos_client.contract.names import Priority
from kronos_client.contract.results import EventChance, PathStatistics
from kronos_model.bars.columns import COLUMNS, PRICE_COLUMNS
from kronos_model.bars.missing import Missing

MAX_CANDLES: Final = 2048
MAX_PREDICTION_TIMESTAMPS: Final = 512
MAX_ITEMS: Final = 256
MAX_NAME_CHARS: Final = 200
DEFAULT_TOP_P: Final = 0.9


def _not_bool(value: object) -> object:
    """Refuse ``true`` and ``false``, which pydantic would read as 1 and 0."""
    if isinstance(value, bool):
        raise PydanticCustomError("number_type", "Input should be a valid number, not true or false")
    return value


NotBool: Final = BeforeValidator(_not_bool)
Number = Annotated[float, Field(allow_inf_nan=False), NotBool]
Column = Annotated[list[Number | None], Field(min_length=1, max_length=MAX_CANDLES, fail_fast=True)]


class Candle(BaseModel):
    """One bar. Unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    open: Number | None = Field(examples=[187.15])
    high: Number | None = Field(examples=[188.4])
    low: Number | None = Field(examples=[186.9])
    close: Number | None = Field(examples=[187.92])
    volume: Number | None = Field(default=None, examples=[50080500])
    amount: Number | None = None


class CandleColumns(BaseModel):
    """Bars by column, which takes less JSON than records."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    open: Column
    high: Column
    low: Column
    close: Column
    volume: Column | None = None
    amount: Column | None = None


def _kind(candles: object) -> Literal["records", "columns"]:
    return "columns" if isinstance(candles, dict | CandleColumns) else "records"


Candles = Annotated[
    Annotated[list[Candle], Field(min_length=1, max_length=MAX_CANDLES, fail_fast=True), Tag(CANDLE_KINDS[0])]
    | Annotated[CandleColumns, Tag(CANDLE_KINDS[1])],
    Discriminator(_kind),
]
Times = Annotated[list[datetime], Field(min_length=1, fail_fast=True)]
Timestamps = Annotated[
    Times, Field(max_length=MAX_CANDLES, description="ISO 8601, one per candle, strictly ascending")
]
FutureTimestamps = Annotated[
    Times,
    Field(
        max_length=MAX_PREDICTION_TIMESTAMPS,
        description="times of the bars to forecast, strictly ascending, after the last candle",
    ),
]


def num_candles(candles: list[Candle] | CandleColumns) -> int:
    """The number of bars; if columns differ in length, that of the first."""
    return len(candles.open) if isinstance(candles, CandleColumns) else len(candles)


def as_columns(candles: list[Candle] | CandleColumns) -> dict[str, list[float | None]]:
    """The contract's columns. Volume and amount are left out if no record has them; else a gap is 0."""
    if isinstance(candles, CandleColumns):
        return candles.model_dump(exclude_none=True)
    columns = {name: [getattr(candle, name) for candle in candles] for name in COLUMNS}
    return {
        name: values if name in PRICE_COLUMNS else [value or 0.0 for value in values]
        for name, values in columns.items()
        if name in PRICE_COLUMNS or any(value is not None for value in values)
    }


Real = Annotated[float, NotBool]
Whole = Annotated[int, NotBool]


class Overrides(BaseModel):
    """Sampling parameters that differ from the defaults. The reference service lacks ``seed``."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    pred_len: Annotated[int, Field(ge=1), NotBool] | None = Field(
        default=None, description="number of prediction_timestamps to forecast; all if left out"
    )
    temperature: Real | None = Field(default=None, description="0.01 to 100; default 1.0")
    top_k: Whole | None = Field(default=None, description="tokens to draw from; default 0, which means all")
    top_p: Real | None = Field(default=None, description="default 0.9")
    sample_count: Whole | None = Field(default=None, description="paths to draw; default 1")
    seed: Whole | None = Field(
        default=None, description="the same seed gives the same numbers; random if left out"
    )

    def sampling(self) -> dict[str, Any]:
        """The parameters as a job's ``sampling``, with the reference service's defaults."""
        return {"top_p": DEFAULT_TOP_P} | self.model_dump(exclude={"pred_len", "seed"}, exclude_none=True)


class SingleRequest(BaseModel):
    """One series. The reference service lacks the fields below ``overrides``."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    series_id: Annotated[str, Field(max_length=MAX_NAME_CHARS)] | None = None
    candles: Candles
    timestamps: Timestamps
    prediction_timestamps: FutureTimestamps
    overrides: Overrides | None = None
    quantiles: Annotated[list[float], Field(max_length=MAX_QUANTILES)] | None = Field(
        default=None, description="levels of the quantiles to return, such as 0.1 and 0.9"
    )
    paths: bool = Field(default=False, description="whether to return every path")
    events: Annotated[list[str], Field(max_length=MAX_EVENTS)] = Field(
        default=[], description="events to return the chance of, such as close>last+2% at 24"
    )
    statistics: bool = Field(
        default=False, description="whether to return return, realised volatility and maximum drawdown"
    )
    model: str | None = Field(default=None, description="default: the workers' own; see /v1/models")
    device: str = Field(default="auto", description="auto, cpu, cuda, cuda:N or mps")
    allow_fallback: bool = Field(default=True, description="whether the CPU may be used if no GPU is ready")
    timezone: str | None = Field(default=None, description="IANA time zone of the timestamps")
    missing: Missing = Field(
        default="error",
        description="candles without prices, which are null, or zero without volume: error, ffill or drop",
    )
    priority: Priority = "normal"

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        expected, actual = num_candles(self.candles), len(self.timestamps)
        if expected != actual:
            raise PydanticCustomError(
                "length_mismatch",
                "{actual} timestamps for {expected} candles: send one per candle",
                {"actual": actual, "expected": expected, "field": "timestamps"},
            )
        wanted, given = self.pred_len, len(self.prediction_timestamps)
        if wanted > given:
            raise PydanticCustomError(
                "length_mismatch",
                "overrides.pred_len is {wanted} for {given} prediction_timestamps: lower it, or send more",
                {"wanted": wanted, "given": given, "field": "overrides.pred_len"},
            )
        return self

    @property
    def pred_len(self) -> int:
        """The number of bars to forecast."""
        return self.drawing.pred_len or len(self.prediction_timestamps)

    @property
    def drawing(self) -> Overrides:
        """The overrides, if any."""
        return self.overrides or Overrides()


class PredictionPoint(BaseModel):
    """One forecast bar: the mean over the paths."""

    timestamp: str
    open: float
    high: float
    low: float
    close: float
    volume: float
    amount: float


class Prediction(BaseModel):
    """The forecast of one series. The reference service lacks the fields below ``tokenizer_version``."""

    series_id: str | None
    prediction: list[PredictionPoint]
    model_version: str | None
    tokenizer_version: str | None
    quantiles: dict[str, dict[str, list[float]]] | None = Field(
        default=None, description="by level, then column: one value per bar; if requested"
    )
    paths: dict[str, list[list[float]]] | None = Field(
        default=None, description="by column: one array of values per path; if requested"
    )
    events: list[EventChance] = Field(default=[], description="the chances, in the order of the request")
    statistics: PathStatistics | None = Field(default=None, description="if requested")
    seed: int = Field(description="the seed that was used")
    lookback: int | None = Field(default=None, description="candles that the model read, the last ones")
    device: str = Field(description="the device that computed it")
    device_warning: str | None = Field(default=None, description="why it is not the requested device")
    engine: EngineKind | None = Field(default=None, description="what computed the steps")
    warnings: list[str] = Field(
        default=[], description="about this series, after those about the whole request"
    )


def version_of(model_id: str, revision: str | None) -> str:
    """A model as answers name it."""
    return model_id if revision is None else f"{model_id}@{revision}"
