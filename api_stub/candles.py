"""Candles in prediction requests: one record per bar, or one array per column."""

from datetime import datetime
from typing import Annotated, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from kronos_model.bars.columns import COLUMNS, PRICE_COLUMNS

MAX_CANDLES: Final = 2048
MAX_PREDICTION_TIMESTAMPS: Final = 512


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


CANDLE_KINDS: Final = ("records", "columns")
"""Tags that pydantic puts into the location of an error. Requests do not contain them."""

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
