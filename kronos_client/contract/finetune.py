"""A finetuning job: its fields and candles, its progress and its result, and reading one from outside."""

import json
import re
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, Field, PlainSerializer, PlainValidator, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.forecast import CandleInput, Device, WireModel, check_ids
from kronos_client.contract.job_limits import Limits
from kronos_client.contract.jobs import (
    PreparedInstrument,
    check_data_payload,
    check_most,
    prepare_instruments,
    read_fields,
)
from kronos_client.contract.model_info import ResultModel, Texts
from kronos_client.contract.names import MODEL_NAME, SCHEMA_VERSION, Priority
from kronos_model.checkpoints.names import bundled_names
from kronos_model.errors import FinetuningConfigError, TrainingDataError
from kronos_model.finetuning.config import FinetuneConfig, parse_config
from kronos_model.finetuning.config_parts import PredictorShape, TokenizerShape
from kronos_model.finetuning.split import split_windows
from kronos_model.text import dotted, escaped, excerpt

MAX_DATA_PATHS: Final = 1000
MAX_PATH_CHARS: Final = 1000
PATH_SCHEMA: Final = {"type": "string", "minLength": 1}


def _paths(value: Any) -> str | tuple[str, ...]:
    """Check by hand: an error then names its place in the list, not each type that pydantic tried."""
    if isinstance(value, str):
        _check_path(value, {})
        return value
    if not isinstance(value, list | tuple):
        raise PydanticCustomError("paths_type", "a string, or an array of them")
    if not 1 <= len(value) <= MAX_DATA_PATHS:
        raise PydanticCustomError("num_paths", f"an array of 1 to {MAX_DATA_PATHS}")
    for index, path in enumerate(value):
        if not isinstance(path, str):
            raise PydanticCustomError("path_type", "a string", {"index": index})
        _check_path(path, {"index": index})
    return tuple(value)


def _check_path(path: str, context: dict[str, Any]) -> None:
    if not 1 <= len(path) <= MAX_PATH_CHARS or not path.isprintable():
        raise PydanticCustomError("path", f"1 to {MAX_PATH_CHARS} printable characters", context)
    if path.startswith(("/", "~")) or "\\" in path or ".." in path.split("/"):
        raise PydanticCustomError(
            "data_not_allowed", "relative to the worker's data folder, with / and without ..", context
        )


DataPaths = Annotated[
    str | tuple[str, ...],
    PlainValidator(_paths),
    PlainSerializer(lambda paths: paths, return_type=Any),
    WithJsonSchema(
        {
            "anyOf": [
                PATH_SCHEMA,
                {"type": "array", "items": PATH_SCHEMA, "minItems": 1, "maxItems": MAX_DATA_PATHS},
            ]
        }
    ),
]


class JobData(WireModel):
    """Files that the worker sees, or the candles themselves."""

    path: DataPaths | None = Field(
        default=None,
        description="CSV or Parquet files, or folders of them, relative to the worker's data folder",
    )
    instruments: (
        Annotated[tuple[CandleInput, ...], Field(strict=False, min_length=1, fail_fast=True)] | None
    ) = Field(default=None, description="the candles themselves, for small data")

    @property
    def paths(self) -> tuple[str, ...]:
        """The files and folders; none if the job carries its candles."""
        return (self.path,) if isinstance(self.path, str) else self.path or ()

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if self.path is None and self.instruments is None:
            raise PydanticCustomError("missing_field", "is empty: add path or instruments", {"field": "data"})
        if self.path is not None and self.instruments is not None:
            text = "has both path and instruments: remove one of them"
            raise PydanticCustomError("two_kinds_of_data", text, {"field": "data"})
        check_ids(self.instruments or (), "data.instruments")
        return self


MAX_CONFIG_BYTES: Final = 2**16
MAX_MESSAGE_CHARS: Final = 280
MAX_PARAMETERS: Final = 10**9
"""The limit for a model from scratch; the largest published model has half as many."""
PLACEHOLDER_PATH: Final = "."
"""Stands for the data's place in a config that is only checked."""

_LOADABLE: Final = re.compile(
    r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9_][\w.-]{0,95})?(@[\w.-]{1,64})?", re.ASCII
)
"""A bundled name, a hub id, or a registered model with or without its version; no other path."""

_REVISION: Final = re.compile(r"[\w][\w./-]{0,99}", re.ASCII)


def _free_name(name: str) -> str:
    if re.fullmatch(MODEL_NAME, name) is None:
        raise PydanticCustomError(
            "model_name", "1 to 64 of a to z, 0 to 9, dot, dash and underscore, a letter or digit first"
        )
    if name in bundled_names():
        raise PydanticCustomError("bundled_name", "another name than that of a bundled model")
    return name


ModelName = Annotated[
    str, AfterValidator(_free_name), WithJsonSchema({"type": "string", "pattern": f"^{MODEL_NAME}$"})
]


class FinetuneJob(WireModel):
    """One job for the task ``kronos.finetune``: train a model, and register it under a name."""

    schema_version: int = Field(default=SCHEMA_VERSION, ge=1, le=SCHEMA_VERSION)
    name: ModelName = Field(description="name to register the trained model under; not a bundled model's")
    config: dict[str, Any] = Field(  # FinetuneConfig reads it, in finetune_config
        default={}, description="how to train, as a config file has it, without data.path and training_device"
    )
    data: JobData
    device: Device = Field(default="auto", description="auto, cpu, cuda, cuda:N or mps")
    allow_fallback: bool = Field(
        default=True, description="whether the CPU may train if no GPU worker for finetuning is ready"
    )
    processes: int = Field(
        default=1, ge=1, description="processes of one machine that train together, each on its own GPU"
    )
    deadline_s: float | None = Field(
        default=None, gt=0, description="seconds from submitted_at, else from receipt"
    )
    submitted_at: float | None = Field(default=None, ge=0, description="Unix time in seconds")
    priority: Priority = "normal"

    def finetune_config(self, data_path: str | tuple[str, ...] = PLACEHOLDER_PATH) -> FinetuneConfig:
        """The config to train with, with the worker's data path.

        Raises:
            JobError: INVALID_CONFIG with the field at fault, such as ``config.predictor.epochs``.
        """
        data = self.config.get("data", {})
        if not isinstance(data, dict):
            raise _invalid("config.data", f"must be an object, not {excerpt(data)}")
        not_here = "cannot be set in a job: leave it out;"
        if "path" in data:
            raise _invalid("config.data.path", f"{not_here} data names the files")
        if self.config.get("training_device", "auto") != "auto":
            raise _invalid("config.training_device", f"{not_here} the job's device sets it")
        placed = self.config | {"data": data | {"path": data_path}}
        try:
            return parse_config(placed)
        except FinetuningConfigError as error:
            if error.field in (None, "config"):  # the error concerns several fields
                raise _refusal("config", error.message) from None
            location = ("config", *str(error.field).split("."))
            raise _refusal(dotted(location), f"config.{error.message}") from None


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
    parent: dict[str, Any] = Field(repr=False, description="what training started from, with its revision")
    metrics: dict[str, Any] = Field(repr=False, description="of each stage, such as its best validation loss")
    evaluation: dict[str, Any] | None = Field(
        repr=False,
        description="model, starting point and naive forecasts on the held-out end; null if left out",
    )
    verdict: Texts = Field(
        default=(), description="the evaluation in plain sentences, also if the model is worse"
    )
    data: dict[str, Any] = Field(
        repr=False, description="what was read: instruments, bars, gaps, dropped rows and why"
    )
    device: str = Field(description="that trained it, such as cpu or cuda:0")
    device_warning: str | None = Field(default=None, description="why it is not the requested device")
    queue: str
    worker: str
    warnings: Texts = ()
    timings_ms: FinetuneTimings
    num_attempts: int = Field(ge=1, description="how often training was started")
    resumed: bool = Field(description="whether training continued from a save of an earlier attempt")


def parse_finetune_job(payload: object, limits: Limits) -> FinetuneJob:
    """Check a job from decoded JSON completely, inline candles included.

    The worker alone checks whether the data is there, and which models may be loaded.

    Raises:
        JobError: Names the first field at fault; nothing else is raised.
    """
    job = read_fields(FinetuneJob, payload, limits, _check_size)
    config = job.finetune_config()
    _check_start(config)
    _check_demand(config, limits)
    if job.data.instruments is not None:
        _check_fit(config, prepare_instruments(job.data.instruments))
    return job


def _check_size(given: dict[Any, Any], limits: Limits) -> None:
    check_data_payload(given, limits)
    size = 0  # a config is small; each unknown field in a large one would cost an error report of its own
    try:
        for part in json.JSONEncoder(ensure_ascii=False).iterencode(given.get("config")):
            size += len(part.encode())
            check_most(size, MAX_CONFIG_BYTES, "config", "bytes: leave fields out")
    except (RecursionError, TypeError, ValueError):  # ValueError: a lone surrogate; thousands of digits
        why = "cannot be written as JSON: it is nested too deeply, or holds invalid text"
        raise _invalid("config", why) from None


def _check_start(config: FinetuneConfig) -> None:
    for part in ("model", "tokenizer"):
        field, name = f"config.start.{part}", getattr(config.start, part)
        revision = getattr(config.start, f"{part}_revision")
        if revision is not None and _REVISION.fullmatch(revision) is None:
            raise _invalid(f"{field}_revision", f"must be a branch, tag or commit, not {excerpt(revision)}")
        if isinstance(name, str) and _LOADABLE.fullmatch(name) is None:
            allowed = "the name of a bundled or registered model, or a hub id that the worker allows"
            message = f"{field} must be {allowed}, not {excerpt(name)}"
            raise JobError(ErrorCode.MODEL_NOT_ALLOWED, message, field)


def _check_demand(config: FinetuneConfig, limits: Limits) -> None:
    """Refuse models and evaluations that are too large for a job; a run by hand has no such limit."""
    for part in ("model", "tokenizer"):
        shape = getattr(config.start, part)
        if isinstance(shape, PredictorShape | TokenizerShape):
            what = "parameters of a model from scratch"
            check_most(_num_parameters(shape), MAX_PARAMETERS, f"config.start.{part}", what)
    field, samples = "config.evaluation.sample_count", config.evaluation.sample_count
    check_most(samples, limits.max_sample_count, field, "sample paths a window")


def _num_parameters(shape: PredictorShape | TokenizerShape) -> int:
    """Roughly: the parameters of its blocks and of its token tables."""
    if isinstance(shape, PredictorShape):
        num_blocks, tokens = shape.n_layers, (1 << shape.s1_bits) + (1 << shape.s2_bits)
    else:
        num_blocks, tokens = shape.n_enc_layers + shape.n_dec_layers, 0
    of_block = shape.d_model * (4 * shape.d_model + 3 * shape.ff_dim)
    return (1 + num_blocks) * of_block + 2 * tokens * shape.d_model


def _check_fit(config: FinetuneConfig, instruments: tuple[PreparedInstrument, ...]) -> None:
    """Refuse at once candles that do not give a window to each part."""
    for field in ("columns", "id_column", "date_format", "decimal"):
        if getattr(config.data, field):
            raise _invalid(f"config.data.{field}", "is for files: leave it out")
    try:
        split_windows([instrument.as_instrument() for instrument in instruments], config.data)
    except (TrainingDataError, FinetuningConfigError) as error:
        field = "data.instruments" if error.field == "data.path" else f"config.{error.field}"
        raise _refusal(field, error.message, error.code) from None


def _invalid(field: str, why: str) -> JobError:
    return _refusal(field, f"{field} {why}")


def _refusal(field: str, message: str, code: str = ErrorCode.INVALID_CONFIG) -> JobError:
    return JobError(code, escaped(message, MAX_MESSAGE_CHARS), field)
