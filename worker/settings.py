"""Every setting, from environment variables with the prefix ``KRONOS_``, as one frozen value.

Read once per process by ``get_settings``; everything below takes the value as an argument.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from kronos_model.errors import CheckpointError, KronosError, OutOfMemory
from worker.connection import connect
from worker.contract.jobs import Limits
from worker.model_names import ModelName, parse_model_names

DEFAULT_REDIS_URL = "redis://127.0.0.1:6379/0"


class SettingsError(Exception):
    """Settings that cannot be used; the message names the variable and what it takes."""


class Settings(BaseSettings):
    """The service's settings. Names in the environment are these in capitals behind ``KRONOS_``."""

    model_config = SettingsConfigDict(
        env_prefix="KRONOS_", frozen=True, extra="ignore", env_ignore_empty=True
    )

    redis_url: SecretStr = Field(
        SecretStr(DEFAULT_REDIS_URL), description="Redis for queues, results and announcements"
    )

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
    models: str | None = Field(
        None,
        description="further models that jobs may name: `MODEL` or `MODEL=TOKENIZER`, each may end in "
        "`@REVISION`, with commas between",
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

    max_series: int = Field(64, ge=1, description="series in one job")
    max_bars: int = Field(8192, ge=1, description="bars of lookback in one series")
    max_sample_count: int = Field(256, ge=1, description="sample paths of one series")
    max_paths: int = Field(4096, ge=1, description="sample paths of one job, over all its series")
    max_message_bytes: int = Field(8 * 2**20, ge=1024, description="size of one job as JSON")
    max_result_bytes: int = Field(16 * 2**20, ge=1024, description="size of one result as JSON, estimated")

    result_ttl_s: int = Field(3600, ge=1, description="how long results stay")
    visibility_timeout_s: int = Field(
        60, ge=1, description="a job whose worker vanished is delivered again after this time"
    )
    gpu_grace_s: float = Field(
        60, ge=0, description="CPU workers take from the gpu queue once no GPU worker was ready for this time"
    )

    model_folder: Path | None = Field(
        None, description="folder of registered models, which jobs may name; finetuning registers them there"
    )
    data_folder: Path | None = Field(
        None,
        description="folder that finetuning jobs name their candles in; only inline candles where not set",
    )
    finetune_time_limit_s: float | None = Field(
        None, gt=0, description="how long one finetuning job may train; no limit where not set"
    )
    finetune_grace_s: int = Field(
        60, ge=1, description="how long training that is to stop may take to save what it has"
    )
    max_inline_bars: int = Field(
        100_000, ge=1, description="bars of all instruments that a finetuning job may carry itself"
    )

    metrics_port: int | None = Field(
        None,
        ge=1,
        le=65535,
        description="a worker's metrics for Prometheus are served there; nowhere where not set",
    )
    metrics_host: str = Field("127.0.0.1", description="address that metrics are served on")

    flower_user: str = Field("kronos", description="Flower's user name")
    flower_password: SecretStr | None = Field(
        None, description="Flower's password; made up by `up` if not set"
    )

    @field_validator("redis_url")
    @classmethod
    def _check_redis_url(cls, url: SecretStr) -> SecretStr:
        text = url.get_secret_value()
        try:
            if not text.startswith(("redis://", "rediss://")):
                raise ValueError
            connect(text).connection_pool.make_connection()  # reads every part; nothing is sent
        except (TypeError, ValueError):  # whose text may repeat the URL, password and all
            raise ValueError("write it like redis://:password@host:6379/0, or rediss:// for TLS") from None
        return url

    @field_validator("models")
    @classmethod
    def _check_models(cls, text: str | None) -> str | None:
        parse_model_names(text)
        return text

    @property
    def further_models(self) -> dict[str, ModelName]:
        """The models that jobs may name beside the worker's own."""
        return parse_model_names(self.models)

    def with_redis_url(self, url: str) -> "Settings":
        """The same settings for another Redis; raises SettingsError."""
        return load_settings(**(self.model_dump() | {"redis_url": SecretStr(url)}))

    def limits(self, max_pred_len: int) -> Limits:
        """What a job may ask for; ``max_pred_len`` is the model's max_context."""
        return Limits(
            max_series=self.max_series,
            max_bars=self.max_bars,
            max_pred_len=max_pred_len,
            max_sample_count=self.max_sample_count,
            max_paths=self.max_paths,
            max_message_bytes=self.max_message_bytes,
            max_result_bytes=self.max_result_bytes,
            max_inline_bars=self.max_inline_bars,
        )


def load_settings(**overrides: Any) -> Settings:
    """Settings from the environment, with ``overrides`` on top; raises SettingsError."""
    try:
        return Settings(**overrides)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        name = "KRONOS_" + "_".join(str(part) for part in first["loc"]).upper()
        raise SettingsError(f"{name} cannot be used: {first['msg']}") from None


def explain(error: KronosError) -> str:
    """Why a worker cannot start with these settings, in one line that names the variables to change."""
    line = f"{error.code}: {error.message}"
    if isinstance(error, CheckpointError):
        line += " KRONOS_MODEL and KRONOS_TOKENIZER choose another, as KRONOS_MODEL=kronos-tiny does."
    if isinstance(error, OutOfMemory):
        line += " Raise KRONOS_MEMORY_MB, or lower KRONOS_MAX_CONTEXT or KRONOS_MAX_MODELS."
    return line


@lru_cache(maxsize=1)
def get_settings() -> Settings:
    """The process's settings, read on first use."""
    return load_settings()
