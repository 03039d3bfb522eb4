"""The config of a finetuning run: one frozen, validated value, from a mapping or a file.

Defaults of losses, optimiser and schedule are the reference's. No torch here, so clients can check a job
before they send it.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import Discriminator, Field, Tag, ValidationError, model_validator

from kronos_model.checkpoints.names import BUNDLED_MODEL, full_name
from kronos_model.devices import DEVICE_PATTERN
from kronos_model.errors import FinetuningConfigError
from kronos_model.finetuning.config_parts import (
    ConfigModel,
    Count,
    DataConfig,
    Fraction,
    Positive,
    PredictorShape,
    TokenizerShape,
)
from kronos_model.seeds import MAX_SEED

StageName = Literal["tokenizer", "predictor"]

DEFAULT_MODEL: Final = "NeoQuasar/Kronos-small"

Shape = TypeVar("Shape", PredictorShape, TokenizerShape)

NameOr = Annotated[
    Annotated[str, Tag("name")] | Annotated[Shape, Tag("shape")],
    Discriminator(lambda value: "name" if isinstance(value, str) else "shape"),
]


class StartConfig(ConfigModel):
    """The start of training: a checkpoint by name, or a shape, which starts from scratch."""

    model: NameOr[PredictorShape] = Field(
        default=DEFAULT_MODEL, description="bundled name, folder or hub id; or a shape"
    )
    tokenizer: NameOr[TokenizerShape] | None = Field(
        default=None, description="bundled name, folder or hub id; or a shape; default: the model's own"
    )
    model_revision: str | None = None
    tokenizer_revision: str | None = None

    @model_validator(mode="after")
    def _check_tokenizer(self) -> Self:
        if self.tokenizer is None and not isinstance(self.model, str):
            raise ValueError("a model from scratch needs a tokenizer: name one, or give its shape")
        if isinstance(self.model, PredictorShape) and isinstance(self.tokenizer, TokenizerShape):
            for bits in ("s1_bits", "s2_bits"):
                if getattr(self.model, bits) != getattr(self.tokenizer, bits):
                    raise ValueError(f"model and tokenizer differ in {bits}")
        return self


class OptimiserConfig(ConfigModel):
    """AdamW on all parameters, and its schedule over the optimiser's steps of a stage."""

    learning_rate: Positive = Field(default=2e-4, description="the highest one of the schedule")
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    clip_norm: Positive = Field(default=2.0, description="largest norm of all gradients together")
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    epsilon: Positive = 1e-8
    schedule: Literal["one_cycle", "constant"] = "one_cycle"
    pct_start: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.03, description="share of the steps during which the rate rises"
    )
    div_factor: Positive = Field(default=10, description="learning_rate over the first rate")
    final_div_factor: Positive = Field(default=1e4, description="the first rate over the last one")
    cycle_momentum: bool = Field(
        default=True, description="whether one_cycle also moves the first beta, down and up again"
    )
    base_momentum: Fraction = Field(default=0.85, description="the first beta at the highest rate")
    max_momentum: Fraction = Field(default=0.95, description="the first beta at the lowest rate")


class PredictorOptimiserConfig(OptimiserConfig):
    """AdamW and its schedule, with the predictor's defaults."""

    learning_rate: Positive = Field(default=4e-5, description="the highest one of the schedule")
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    clip_norm: Positive = Field(default=3.0, description="largest norm of all gradients together")


class StageConfig(ConfigModel):
    """Length, batches, early stop and optimiser of a stage, with the tokenizer's defaults."""

    epochs: Count = 30
    batch_size: Count = Field(default=50, description="windows in a batch, over all processes")
    gradient_accumulation_steps: Count = 1
    windows_per_epoch: Count | None = Field(
        default=None, description="windows drawn for each epoch; default: all training windows"
    )
    validation_windows: Count | None = Field(
        default=2048, description="most windows to validate on, spread evenly, the same each epoch; null: all"
    )
    patience: Count | None = Field(
        default=None, description="epochs without a better validation loss before the stage stops early"
    )
    optimiser: OptimiserConfig = OptimiserConfig()


class PredictorStageConfig(StageConfig):
    """The predictor's stage, with its defaults."""

    optimiser: PredictorOptimiserConfig = PredictorOptimiserConfig()
    sibling: Literal["sampled", "teacher_forced"] = Field(
        default="sampled", description="coarse token from which training predicts the fine one"
    )
    objective: Literal["reference", "forecast"] = Field(
        default="reference",
        description="reference: all bars of a window count, as in the reference; forecast: those after the "
        "lookback, each computed as in a forecast",
    )


class EvaluationConfig(ConfigModel):
    """The comparison after training, on the test part."""

    windows: Annotated[int, Field(ge=0)] = Field(
        default=64, description="windows, evenly spread over the test part; 0 skips the comparison"
    )
    sample_count: Annotated[int, Field(ge=2)] = 32
    temperature: Positive = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    season: Count | None = Field(
        default=None, description="bars of the seasonal forecast's season; default: a day's bars"
    )


def _default_stages(fields: dict[str, Any]) -> tuple[StageName, ...]:
    """Both, or the predictor alone if training would spoil the tokenizer."""
    start = fields.get("start")  # missing if it is invalid
    source = None if start is None else start.tokenizer or start.model
    # The bundled tokenizer's weights are computed: training would spoil them.
    is_computed = isinstance(source, str) and full_name(source) == BUNDLED_MODEL
    return ("predictor",) if is_computed else ("tokenizer", "predictor")


class FinetuneConfig(ConfigModel):
    """One finetuning run."""

    data: DataConfig
    start: StartConfig = StartConfig()
    stages: Annotated[tuple[StageName, ...], Field(min_length=1, max_length=2)] = Field(
        default_factory=_default_stages,
        description=f"default: tokenizer and predictor; from {BUNDLED_MODEL} the predictor alone",
    )
    tokenizer: StageConfig = StageConfig()
    predictor: PredictorStageConfig = PredictorStageConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    max_context: Count | None = Field(
        default=None, description="most bars that the model sees; default: as published with its start"
    )
    clip: Positive = Field(default=5, description="scaled values are clipped to ±clip")
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] = 0
    training_device: Annotated[str, Field(pattern=DEVICE_PATTERN)] = Field(
        default="auto", description="auto, cpu, cuda, cuda:N or mps"
    )
    mixed_precision: Literal["no", "bf16", "fp16"] = "no"
    num_workers: Annotated[int, Field(ge=0, le=64)] = Field(
        default=0, description="processes that prepare windows; 0 prepares them in the training process"
    )
    save_interval_s: Positive = Field(default=300, description="seconds between saves of the whole state")

    @model_validator(mode="after")
    def _check_stages(self) -> Self:
        if list(self.stages) not in (["tokenizer"], ["predictor"], ["tokenizer", "predictor"]):
            raise ValueError("stages must be tokenizer, predictor, or tokenizer and then predictor")
        if isinstance(self.start.tokenizer, TokenizerShape) and "tokenizer" not in self.stages:
            raise ValueError("a tokenizer from scratch must be trained: add the stage tokenizer")
        if isinstance(self.start.model, PredictorShape) and "predictor" not in self.stages:
            raise ValueError("a model from scratch must be trained: add the stage predictor")
        return self


def parse_config(content: Mapping[str, Any]) -> FinetuneConfig:
    """Check the content of a file or a job; raises FinetuningConfigError."""
    try:
        return FinetuneConfig.model_validate(dict(content))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        location = [str(part) for part in first["loc"] if part not in _UNION_TAGS]
        field = ".".join(location) or "config"
        hint = {
            "extra_forbidden": "is not a field: remove it or check its spelling",
            "missing": "is missing: add it",
        }.get(first["type"])
        text = first["msg"].removeprefix("Value error, ")
        message = f"{field} {hint}" if hint else f"{field}: {text[:1].lower()}{text[1:]}"
        raise FinetuningConfigError(message[:500], field=field) from None


# pydantic puts the tried member of a union between two parts of the path.
_UNION_TAGS: Final = {"name", "shape", "number", "range", "constrained-str"}


def load_config(path: Path | None = None, overrides: Sequence[str] = (), **fields: Any) -> FinetuneConfig:
    """Load a config from a YAML or JSON file.

    ``overrides`` such as ``predictor.epochs=3`` replace fields; their values are YAML. ``fields`` are whole
    top-level fields, which replace both.

    Raises FinetuningConfigError, whose ``field`` is the dotted path at fault.
    """
    content = {} if path is None else _read(path)
    for override in overrides:
        _apply(content, override)
    return parse_config(content | fields)


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text) if path.suffix == ".json" else _yaml(text)
    except (OSError, ValueError) as error:
        raise FinetuningConfigError(f"{path} cannot be read: {error}", field="config") from error
    if not isinstance(content, dict):
        raise FinetuningConfigError(f"{path} holds no fields, but a {type(content).__name__}", field="config")
    return content


def _apply(content: dict[str, Any], override: str) -> None:
    """Put ``a.b=value`` into nested mappings."""
    name, has_value, text = override.partition("=")
    *parents, last = name.strip().split(".")
    if not has_value or not last:
        raise FinetuningConfigError(f"{override!r} is no override: write field.field=value", field="config")
    for parent in parents:
        if not isinstance(content.get(parent), dict):
            content[parent] = {}
        content = content[parent]
    try:
        content[last] = _yaml(text)
    except ValueError as error:
        raise FinetuningConfigError(f"{override!r}: the value cannot be read: {error}", field=name) from error


def _yaml(text: str) -> Any:
    """Raises ValueError for what is not YAML."""
    try:
        import yaml  # optional: a config from a mapping or JSON does not need it
    except ImportError:
        message = "YAML needs a further package: pip install PyYAML, or give a JSON file or a mapping"
        raise FinetuningConfigError(message, field="config") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
