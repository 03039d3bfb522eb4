"""What a prediction is asked by and answered with."""

from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from api_stub.candles import Candles, FutureTimestamps, NotBool, Timestamps, num_candles
from kronos_client.contract.forecast import MAX_QUANTILES
from kronos_client.contract.names import Priority

MAX_ITEMS: Final = 256
MAX_NAME_CHARS: Final = 200

Real = Annotated[float, NotBool]
Whole = Annotated[int, NotBool]


class Overrides(BaseModel):
    """How the future is drawn, where not by the defaults. ``seed`` is ours."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    pred_len: Annotated[int, Field(ge=1), NotBool] | None = Field(
        default=None, description="forecast only the first so many of prediction_timestamps"
    )
    temperature: Real | None = Field(default=None, description="1.0 where left out; 0.01 to 100")
    top_k: Whole | None = Field(default=None, description="0 where left out, which means all tokens")
    top_p: Real | None = Field(default=None, description="0.9 where left out")
    sample_count: Whole | None = Field(default=None, description="paths to draw; 1 where left out")
    seed: Whole | None = Field(default=None, description="for the same numbers again; made up where left out")

    def sampling(self) -> dict[str, Any]:
        """Those that were given, of a job's ``sampling``."""
        return self.model_dump(exclude={"pred_len", "seed"}, exclude_none=True)


class SingleRequest(BaseModel):
    """One series. The fields below ``overrides`` are ours."""

    model_config = ConfigDict(
        extra="ignore",
        frozen=True,
        json_schema_extra={
            "examples": [
                {
                    "series_id": "AAPL",
                    "candles": [
                        {"open": 186.9, "high": 187.55, "low": 186.55, "close": 187.15, "volume": 50080500},
                        {"open": 187.15, "high": 188.32, "low": 186.8, "close": 187.92, "volume": 47471400},
                        {"open": 187.92, "high": 188.8, "low": 187.57, "close": 188.4, "volume": 54156800},
                    ],
                    "timestamps": ["2024-06-18T09:30:00", "2024-06-18T09:35:00", "2024-06-18T09:40:00"],
                    "prediction_timestamps": ["2024-06-18T09:45:00", "2024-06-18T09:50:00"],
                    "overrides": {"temperature": 1.0, "top_p": 0.9, "sample_count": 5, "seed": 7},
                }
            ]
        },
    )

    series_id: Annotated[str, Field(max_length=MAX_NAME_CHARS)] | None = None
    candles: Candles
    timestamps: Timestamps
    prediction_timestamps: FutureTimestamps
    overrides: Overrides | None = None
    quantiles: Annotated[list[float], Field(max_length=MAX_QUANTILES)] | None = Field(
        default=None, description="levels of the quantiles over the paths to answer with, such as 0.1 and 0.9"
    )
    paths: bool = Field(default=False, description="whether to answer with every path")
    model: str | None = Field(default=None, description="the workers' own where left out; see /v1/models")
    device: str = Field(default="auto", description="auto, cpu, cuda, cuda:N or mps")
    allow_fallback: bool = Field(default=True, description="whether the CPU will do for want of a GPU")
    timezone: str | None = Field(default=None, description="IANA zone whose clock the timestamps follow")
    priority: Priority = "normal"

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        expected, actual = num_candles(self.candles), len(self.timestamps)
        if expected != actual:
            raise PydanticCustomError(
                "length_mismatch",
                "{actual} timestamps for {expected} candles: give one a candle",
                {"actual": actual, "expected": expected, "field": "timestamps"},
            )
        wanted, given = self.pred_len, len(self.prediction_timestamps)
        if wanted > given:
            raise PydanticCustomError(
                "length_mismatch",
                "overrides.pred_len is {wanted}, but there are {given} prediction_timestamps",
                {"wanted": wanted, "given": given, "field": "overrides.pred_len"},
            )
        return self

    @property
    def pred_len(self) -> int:
        """Bars to forecast."""
        given = None if self.overrides is None else self.overrides.pred_len
        return len(self.prediction_timestamps) if given is None else given


class PredictionPoint(BaseModel):
    """One bar that was forecast: the mean over the paths."""

    timestamp: str
    open: float
    high: float
    low: float
    close: float
    volume: float
    amount: float


class Prediction(BaseModel):
    """The forecast of one series. The fields below ``tokenizer_version`` are ours."""

    series_id: str | None
    prediction: list[PredictionPoint]
    model_version: str | None
    tokenizer_version: str | None
    quantiles: dict[str, dict[str, list[float]]] | None = Field(
        default=None, description="by level, then by column: a value a bar; where they were asked for"
    )
    paths: dict[str, list[list[float]]] | None = Field(
        default=None, description="by column: an array of values for each path; where they were asked for"
    )
    seed: int = Field(description="the one that was used")
    device: str = Field(description="that computed it")
    device_warning: str | None = Field(default=None, description="why it is not the one that was asked for")
    warnings: list[str] = []
