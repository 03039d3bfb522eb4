"""A worker's settings, on top of those that clients and the API read."""

import re
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, model_validator

from kronos_client.settings import ServiceSettings
from kronos_model.errors import CheckpointError, KronosError, OutOfMemory

HUB_ID: Final = re.compile(r"(?P<id>[\w.-]+/[\w.-]+)@(?P<revision>[^@\s]+)")
"""A hub id with a revision."""


class WorkerSettings(ServiceSettings):
    """The settings of a worker process."""

    role: Literal["forecast", "finetune"] = "forecast"
    """what the worker does"""
    device: str = "auto"
    """`auto`, `cpu`, `cuda`, `cuda:N` or `mps`"""
    model: str | None = None
    """hub id, folder, bundled or registered name; a hub id may have `@REVISION`, its branch, tag or commit;
    default: `NeoQuasar/Kronos-small`"""
    tokenizer: str | None = None
    """hub id, with `@REVISION` if needed, folder or bundled name; default: the tokenizer that belongs to the
    model"""
    model_revision: str | None = None
    """branch, tag or commit of the model on the hub"""
    tokenizer_revision: str | None = None
    """branch, tag or commit of the tokenizer"""
    max_context: int | None = Field(None, ge=1)
    """bars that the model sees at most; default: as the model was published"""
    max_models: int = Field(2, ge=1)
    """models that one worker process holds, its own included"""
    memory_mb: int | None = Field(None, ge=1)
    """MiB for weights and slots of all models of one worker process, on a GPU for steps too; default: 80 % of
    what is free on a GPU, no limit on a CPU. Suspended paths take more, in the host's memory: as many as
    there are slots at most, or 64"""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """number format in which weights are multiplied"""
    engine: Literal["auto", "torch"] = "auto"
    """what computes the steps on a CPU: the native kernels if it can use them, else PyTorch; `torch` is for
    pools of different machines whose results must be equal"""
    threads: int | None = Field(None, ge=1)
    """CPU threads that one worker process computes with; default: `OMP_NUM_THREADS`, else its cores, divided
    among the processes of `kronos worker --processes`"""
    kernel_cache: Path | None = None
    """folder of the CPU's compiled kernels; default: `kronos/kernels` in the user's cache folder. If others
    than this user and root can write it or a folder above it, each start compiles kernels in memory"""
    max_jobs: int | None = Field(None, ge=1)
    """jobs of low priority that one worker process holds; each higher priority may hold an eighth more, at
    least one; default: as many as `KRONOS_MAX_SLOTS`, at least 64: 128, or 512 on a GPU"""
    max_slots: int | None = Field(None, ge=1)
    """sample paths that one model computes at once; default: 128 on the CPU and on MPS, on a GPU as many as
    fit its memory, up to 512. On a CPU without `KRONOS_MEMORY_MB` small jobs may use an eighth more"""
    max_prefill_bars: int | None = Field(None, ge=1)
    """bars of lookback that one step computes; default: 512 on the CPU, 2048 on MPS, 8192 on a GPU"""
    max_dead_messages: int = Field(1000, ge=1)
    """unreadable messages that Redis keeps in `kronos:dead`; the oldest go first"""
    visibility_timeout_s: int = Field(60, ge=1)
    """seconds after which a job whose worker vanished is delivered again"""
    step_timeout_s: float = Field(120, gt=0)
    """seconds after which a step of the engine counts as hung and ends the worker"""
    drain_timeout_s: float | None = Field(None, ge=0)
    """seconds after SIGTERM in which running forecasts may end; then they go back to the queue; default: no
    limit"""
    gpu_grace_s: float = Field(60, ge=0)
    """seconds without a ready GPU worker after which CPU workers take from queue `gpu` too"""
    finetune_time_limit_s: float | None = Field(None, gt=0)
    """seconds that one finetuning job may train, or one backtest take; default: no limit"""
    finetune_grace_s: int = Field(60, ge=1)
    """seconds that training may take to save its state when it is stopped"""
    metrics_port: int | None = Field(None, ge=1, le=65535)
    """port of a worker's metrics for Prometheus; default: none are served"""
    metrics_host: str = "127.0.0.1"
    """address at which a worker serves its metrics"""

    @model_validator(mode="before")
    @classmethod
    def _split_revisions(cls, given: dict[str, Any]) -> dict[str, Any]:
        for part in ("model", "tokenizer"):
            text, revision = given.get(part) or "", f"{part}_revision"
            match = HUB_ID.fullmatch(text)
            if match and given.get(revision) is None and not Path(text).exists():
                given = given | {part: match["id"], revision: match["revision"]}
        return given


def explain(error: KronosError) -> str:
    """One line that says why a worker cannot start, and which variables to change."""
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
