"""The model that computes a forecast, as results and worker statuses name it. Imports no NumPy."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

EngineKind = Literal["native", "torch"]

Texts = Annotated[tuple[str, ...], Field(strict=False)]


class ResultModel(BaseModel):
    """Frozen; unknown fields are ignored, so that an older client reads a newer worker's results."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)


class ModelInfo(ResultModel):
    """Which model and tokenizer computed it; revisions are null for local folders."""

    id: str
    revision: str | None
    tokenizer_id: str
    tokenizer_revision: str | None


class CalibrationInfo(ResultModel):
    """The calibration of a model. It corrects quantiles."""

    method: str = Field(description="split_conformal")
    lookback: int = Field(description="bars that a calibrated forecast reads")
    horizon: int = Field(description="the most bars of a calibrated forecast")
    sample_count: int = Field(description="the fewest paths of a calibrated forecast")
    num_windows: int = Field(description="past forecasts that the correction was fitted to")
    weights: dict[str, float] = Field(
        description="the share of the model's own quantiles that is kept, of each column that is corrected"
    )
    first: str = Field(description="when the first of these forecasts begins")
    last: str = Field(description="when the last of them begins")
    fitted_at: str
    age_days: float = Field(description="since then")
