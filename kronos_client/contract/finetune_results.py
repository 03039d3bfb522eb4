"""A finetuning job's progress while it trains, and its result."""

from typing import Any

from pydantic import Field

from kronos_client.contract.model_info import ResultModel, Texts


class FinetuneProgress(ResultModel):
    """The stored meta of a job with state PROGRESS. Unknown values are null."""

    stage: str | None = Field(default=None, description="tokenizer, predictor, or evaluation after them")
    stage_index: int | None = Field(default=None, description="of the stage, from 0")
    num_stages: int | None = None
    epoch: int | None = Field(default=None, description="that is trained now, from 1")
    num_epochs: int | None = None
    step: int | None = Field(
        default=None,
        description="optimiser steps done in the stage; bars that are forecast in the evaluation",
    )
    num_steps: int | None = None
    loss: float | None = None
    learning_rate: float | None = None
    validation_loss: float | None = Field(default=None, description="after the last epoch")
    best_validation_loss: float | None = Field(default=None, description="of the stage so far")
    seconds_left: float | None = Field(default=None, description="of the stage, as estimated")
    device: str | None = None
    warnings: Texts | None = Field(default=None, description="for people, about the candles")


class FinetunedModel(ResultModel):
    """The registered model. Jobs name it by ``id``, or by ``name`` if no other version was promoted."""

    name: str
    version: int = Field(ge=1)
    id: str = Field(description="name@version")


class FinetuneTimings(ResultModel):
    """Milliseconds."""

    queued: float = Field(ge=0, description="from submission to the first start of training")
    training: float = Field(ge=0, description="in training processes, over all known attempts")
    total: float = Field(ge=0, description="from submission to the result")


class FinetuneResult(ResultModel):
    """The result of a finetuning job."""

    model: FinetunedModel
    parent: dict[str, Any] = Field(description="what training started from, with its revision")
    metrics: dict[str, Any] = Field(description="of each stage, such as its best validation loss")
    evaluation: dict[str, Any] | None = Field(
        description="model, starting point and naive forecasts on the held-out end; null if left out"
    )
    verdict: Texts = Field(
        default=(), description="the evaluation in plain sentences, also if the model is worse"
    )
    data: dict[str, Any] = Field(description="what was read: instruments, bars, gaps, dropped rows and why")
    device: str = Field(description="that trained it, such as cpu or cuda:0")
    device_warning: str | None = Field(default=None, description="why it is not the requested device")
    queue: str
    worker: str
    warnings: Texts = ()
    timings_ms: FinetuneTimings
    num_attempts: int = Field(ge=1, description="how often training was started")
    resumed: bool = Field(description="whether training continued from a save of an earlier attempt")
