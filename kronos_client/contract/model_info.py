"""The model that computes a forecast, as results and worker statuses name it. Imports no NumPy."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

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
