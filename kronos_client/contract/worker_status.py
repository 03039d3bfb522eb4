"""A worker's status, which it announces in Redis every few seconds. No NumPy."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from kronos_client.contract.model_info import CalibrationInfo, EngineKind, ModelInfo
from kronos_client.contract.names import Role

State = Literal["loading", "ready", "draining"]


class StatusModel(BaseModel):
    """Frozen. Fields that a newer worker adds are kept and printed with the rest."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    def as_json(self) -> dict[str, Any]:
        """The fields that were given, as JSON has them."""
        return self.model_dump(mode="json", exclude_unset=True)


class WorkerStatus(StatusModel):
    """What all workers announce."""

    node: str = Field(description="Celery's name of the worker")
    state: State
    role: Role
    queue: str = Field(description="which the worker takes jobs from")
    requested_device: str = "auto"
    device: str = Field(description="in use, such as cpu or cuda:0")
    device_warning: str | None = Field(default=None, description="why it is not the requested device")
    device_description: dict[str, Any] = Field(
        default={},
        description="name, kind, index, memory_total_bytes, memory_free_bytes, utilisation_percent (of a "
        "GPU) and versions; an unknown value is null",
    )
    jobs_done: int = 0
    jobs_failed: int = 0
    jobs_per_s: float = Field(
        default=0.0,
        ge=0,
        allow_inf_nan=False,
        description="jobs that ended, over the busy time of the last minute with jobs",
    )
    busy_s: float | None = Field(default=None, description="time in which it held jobs for forecasts")
    threads: int | None = None
    versions: dict[str, str] = {}
    host: str = ""
    pid: int = 0
    uptime_s: float = Field(default=0.0, allow_inf_nan=False)
    problem: str | None = Field(default=None, description="why a ready worker cannot work, and what to do")

    @property
    def is_ready(self) -> bool:
        """Whether the worker takes jobs, and can store their outcomes."""
        return self.state == "ready" and self.problem is None

    @property
    def condition(self) -> str:
        """The worker's state in words, with its problem."""
        return self.state if self.problem is None else f"not ready: {self.problem}"

    def all_warnings(self) -> list[str]:
        """Why its device is not the requested one, and why its models do not use the native engine."""
        return [] if self.device_warning is None else [self.device_warning]


class RunningJob(StatusModel):
    """A forecast job that runs, over all paths of all its series."""

    id: str
    bars_done: int
    bars_total: int = Field(gt=0)


class ModelStatus(StatusModel):
    """A model that a worker holds or loads. Slots, ``running`` and ``waiting`` count sample paths."""

    id: str
    revision: str | None
    state: Literal["loading", "ready"]
    max_context: int | None = Field(default=None, description="the most bars that it uses")
    lookback: int | None = Field(default=None, description="most bars of lookback in its training, if known")
    min_lookback: int | None = Field(default=None, description="the fewest; without them always the most")
    calibration: CalibrationInfo | None = Field(default=None, description="of its quantiles, if it has one")
    engine: EngineKind | None = Field(default=None, description="null while it loads, and of 0.1.0")
    engine_warning: str | None = Field(default=None, description="why it is not the native one on a CPU")
    jobs: int
    slots: int
    running: int
    waiting: int


class ForecastWorkerStatus(WorkerStatus):
    """A worker for forecasts. Slots and sequences are sums over its models."""

    role: Literal["forecast"]
    model: ModelInfo | None = Field(default=None, description="the worker's own; null while it loads")
    num_parameters: int | None = None
    max_context: int | None = None
    load_s: float | None = None
    jobs_running: Annotated[tuple[RunningJob, ...], Field(strict=False, description="the most advanced")] = ()
    num_jobs_running: int = 0
    sequences_running: int = 0
    sequences_waiting: int = 0
    slots: int = 0
    bars_per_s: float = Field(default=0.0, description="over the last seconds, as the two means below")
    mean_batch_size: float | None = Field(default=None, description="sample paths in a step")
    queue_wait_s: float | None = Field(default=None, description="time that a series waited for slots")
    models: Annotated[tuple[ModelStatus, ...], Field(strict=False, description="the worker's own first")] = ()
    max_models: int = 1
    limits: dict[str, int] = Field(default={}, description="the most that a job may have, by setting")
    dtype: str = ""

    def all_warnings(self) -> list[str]:
        engines = filter(None, (model.engine_warning for model in self.models))
        return list(dict.fromkeys([*super().all_warnings(), *engines]))

    def named(self, model: str | None) -> Sequence[ModelStatus]:
        """Its models of a name; for None its own."""
        return self.models[:1] if model is None else [status for status in self.models if status.id == model]


class TrainingStatus(StatusModel):
    """The job that a finetuning worker trains. Unknown values are null."""

    job_id: str
    name: str
    stage: str | None = None
    epoch: int | None = None
    num_epochs: int | None = None
    step: int | None = None
    num_steps: int | None = None
    loss: float | None = None


class FinetuneWorkerStatus(WorkerStatus):
    """A worker for finetuning."""

    role: Literal["finetune"]
    model: None = None
    training: TrainingStatus | None = None
    model_folder: str = ""
    has_data_folder: bool = False


AnyWorkerStatus = ForecastWorkerStatus | FinetuneWorkerStatus

WORKER_STATUS: Final[TypeAdapter[AnyWorkerStatus]] = TypeAdapter(
    Annotated[AnyWorkerStatus, Field(discriminator="role")]
)
"""Reads an announcement: ``WORKER_STATUS.validate_json(text)`` raises ValidationError if it is none."""
