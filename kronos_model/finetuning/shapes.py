"""Shapes of models from scratch, and the base of all parts of a config. No torch."""

from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

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
