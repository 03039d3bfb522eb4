"""The parts of a config: shapes of models from scratch, the candles, and their windows. No torch."""

from collections.abc import Mapping
from datetime import date
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from kronos_model.bars.missing import Missing

DEPENDENCY_HEADS: Final = 4
"""Heads of the layer between a bar's two tokens, in every shape."""


def no_truth_value(value: Any) -> Any:
    """Refuse true and false, such as YAML's yes, which Python would take for numbers."""
    if isinstance(value, bool):
        raise PydanticCustomError("int_type", "Input should be a number, not true or false")
    return value


Fraction = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1), BeforeValidator(no_truth_value)]


class ConfigModel(BaseModel):
    """A frozen part of a config. Unknown fields are refused. Numbers may be text: YAML reads 1e-4 as text."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class _Shape(ConfigModel):
    d_model: Count
    n_heads: Count
    ff_dim: Count
    ffn_dropout_p: Fraction = 0.0
    attn_dropout_p: Fraction = 0.0
    resid_dropout_p: Fraction = 0.0
    s1_bits: Annotated[int, Field(ge=1, le=16)] = 10
    s2_bits: Annotated[int, Field(ge=1, le=16)] = 10

    def _check_heads(self, n_heads: int) -> None:
        """Refuse heads of unequal or odd width: rotation needs two halves of each."""
        if self.d_model % (2 * n_heads):
            raise ValueError(f"d_model {self.d_model} is no multiple of twice {n_heads} heads")


class TokenizerShape(_Shape):
    """A tokenizer from scratch: the arguments of ``KronosTokenizer``."""

    d_in: Literal[6] = 6
    n_enc_layers: Count
    n_dec_layers: Count
    beta: float = 0.05
    gamma0: float = 1.0
    gamma: float = 1.1
    zeta: float = 0.05
    group_size: Count = 5

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._check_heads(self.n_heads)
        bits = self.s1_bits + self.s2_bits
        if bits % self.group_size:
            raise ValueError(f"group_size {self.group_size} does not divide the {bits} bits of a token")
        return self


class PredictorShape(_Shape):
    """A predictor from scratch: the arguments of ``Kronos``."""

    n_layers: Count
    token_dropout_p: Fraction = 0.0
    learn_te: bool = True

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._check_heads(self.n_heads)
        self._check_heads(DEPENDENCY_HEADS)
        return self


PathText = Annotated[str, Field(min_length=1)]
# YAML converts texts that look like dates.
Moment = Annotated[str, BeforeValidator(lambda text: text.isoformat() if isinstance(text, date) else text)]
ColumnName = Literal["timestamps", "time", "open", "high", "low", "close", "volume", "amount", "value"]


class LookbackRange(ConfigModel):
    """The shortest and the longest lookback; each batch draws one between them."""

    min: Annotated[Count, Field(ge=2)] = Field(description="bars of the shortest lookback")
    max: Count = Field(description="bars of the longest")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        return self


def _tag(value: Any) -> str:
    return "range" if isinstance(value, Mapping | LookbackRange) else "number"


Lookback = Annotated[
    Annotated[int, Field(ge=2), BeforeValidator(no_truth_value), Tag("number")]
    | Annotated[LookbackRange, Tag("range")],
    Discriminator(_tag),
]


class ReadConfig(ConfigModel):
    """How to read the files of candles, where their form alone does not say it."""

    columns: dict[ColumnName, str] = Field(
        default={}, description="titles of columns in the files, if not the names here: {close: Adj Close}"
    )
    id_column: str | None = Field(
        default=None, description="column with the instrument's name, for files with several instruments"
    )
    date_format: str | None = Field(
        default=None, description="form of the times as in Python's strptime, where it cannot be found"
    )
    decimal: Literal[".", ","] | None = Field(
        default=None, description="decimal sign of the numbers, where it cannot be found"
    )
    missing: Missing = Field(
        default="error",
        description="bars without prices, which are blank, or zero without volume: error, ffill or drop",
    )
    drop_bad_rows: bool = Field(
        default=False,
        strict=True,
        description="leave unusable rows out and count them; else the first is an error",
    )
    reject_impossible: bool = Field(
        default=False,
        strict=True,
        description="whether an open or close outside low to high makes a row unusable",
    )


class DataConfig(ReadConfig):
    """The candles, and how they are cut into windows."""

    path: PathText | Annotated[tuple[PathText, ...], Field(min_length=1)] = Field(
        description="CSV or Parquet files, or folders of them; one instrument a file"
    )
    lookback: Lookback = Field(
        default=LookbackRange(min=64, max=400),
        description="first bars of a window, which scale it: a number, or {min, max}; each batch draws one",
    )
    pred_len: Count = Field(default=48, description="bars of a window after the lookback")
    stride: Count = Field(default=1, description="bars between the starts of two windows of an instrument")
    validation_fraction: Annotated[Fraction, Field(gt=0)] = Field(
        default=0.1, description="share of the bars, before the test part"
    )
    test_fraction: Fraction = Field(default=0.1, description="share of the bars, the newest ones")
    validation_from: Moment | None = Field(
        default=None, description="ISO 8601 time at which validation begins, instead of its fraction"
    )
    test_from: Moment | None = Field(
        default=None, description="ISO 8601 time at which the test part begins, instead of its fraction"
    )
    gap: Annotated[int, Field(ge=0)] = Field(
        default=0, description="bars left out before validation and before test"
    )

    @property
    def lookbacks(self) -> LookbackRange:
        """The shortest and the longest lookback, the same if it is a number."""
        if isinstance(self.lookback, LookbackRange):
            return self.lookback
        return LookbackRange(min=self.lookback, max=self.lookback)

    @property
    def window(self) -> int:
        """Bars of the longest window."""
        return self.lookbacks.max + self.pred_len

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path,) if isinstance(self.path, str) else self.path

    @model_validator(mode="after")
    def _check_fractions(self) -> Self:
        if self.validation_fraction + self.test_fraction >= 1:
            raise ValueError("validation_fraction and test_fraction leave nothing to train on")
        if (self.validation_from is None) != (self.test_from is None):
            raise ValueError("give validation_from and test_from, or neither")
        return self
