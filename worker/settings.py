"""What a worker reads of the environment, on top of what clients and the API read."""

from functools import cache
from typing import Literal

from pydantic import Field

from kronos_client.settings import ServiceSettings
from kronos_model.errors import CheckpointError, KronosError, OutOfMemory


class WorkerSettings(ServiceSettings):
    """The settings of a worker process."""

    role: Literal["forecast", "finetune"] = Field(
        "forecast", description="what a worker does: forecast, or finetune"
    )
    device: str = Field("auto", description="auto, cpu, cuda, cuda:N or mps")
    model: str | None = Field(
        None, description="hub id, folder, bundled or registered name; NeoQuasar/Kronos-small where not set"
    )
    tokenizer: str | None = Field(
        None, description="likewise; the one that belongs to the model where not set"
    )
    model_revision: str | None = Field(None, description="branch, tag or commit of the model on the hub")
    tokenizer_revision: str | None = Field(None, description="branch, tag or commit of the tokenizer")
    max_context: int | None = Field(
        None, ge=1, description="bars the model sees at most; what the model was published with where not set"
    )
    max_models: int = Field(2, ge=1, description="models that one worker process holds at once, with its own")
    memory_mb: int | None = Field(
        None,
        ge=1,
        description="MiB for weights and slots of all models of one worker process; "
        "where not set, 80 % of what is free on a GPU, no limit on a CPU",
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="in which weights are multiplied: float32 or bfloat16"
    )
    threads: int | None = Field(
        None,
        ge=1,
        description="CPU threads that one worker process computes with; where not set, `OMP_NUM_THREADS`, "
        "else the cores it may use, divided among the processes of its pool",
    )
    max_jobs: int = Field(64, ge=1, description="jobs that one worker process holds at once")
    max_slots: int | None = Field(
        None,
        ge=1,
        description="sample paths that one model computes at once; where not set, 64 on the CPU, on a GPU as "
        "many as fit its memory, up to 512",
    )
    max_prefill_bars: int | None = Field(
        None,
        ge=1,
        description="bars of lookback that one step computes; where not set, 512 on the CPU, 8192 on a GPU",
    )
    low_priority_max_wait_s: float = Field(
        600, gt=0, description="a job of low priority counts as normal once it waited for this time"
    )
    max_dead_messages: int = Field(
        1000,
        ge=1,
        description="messages that nobody can read, the newest, which Redis keeps in `kronos:dead`",
    )
    visibility_timeout_s: int = Field(
        60, ge=1, description="a job whose worker vanished is delivered again after this time"
    )
    step_timeout_s: float = Field(
        120,
        gt=0,
        description="a step of the engine that takes longer hangs: the worker ends, its jobs run elsewhere",
    )
    gpu_grace_s: float = Field(
        60, ge=0, description="CPU workers take from the gpu queue once no GPU worker was ready for this time"
    )
    finetune_time_limit_s: float | None = Field(
        None, gt=0, description="how long one finetuning job may train; no limit where not set"
    )
    finetune_grace_s: int = Field(
        60, ge=1, description="how long training that is to stop may take to save what it has"
    )
    metrics_port: int | None = Field(
        None,
        ge=1,
        le=65535,
        description="a worker's metrics for Prometheus are served there; nowhere where not set",
    )
    metrics_host: str = Field("127.0.0.1", description="address that metrics are served on")


def explain(error: KronosError) -> str:
    """Why a worker cannot start with these settings, in one line that names the variables to change."""
    line = f"{error.code}: {error.message}"
    if isinstance(error, CheckpointError):
        line += " KRONOS_MODEL and KRONOS_TOKENIZER choose another, as KRONOS_MODEL=kronos-tiny does."
    if isinstance(error, OutOfMemory):
        line += " Raise KRONOS_MEMORY_MB, or lower KRONOS_MAX_CONTEXT or KRONOS_MAX_MODELS."
    return line


@cache
def get_settings() -> WorkerSettings:
    """This worker process's settings, read on first use."""
    return WorkerSettings.load()
