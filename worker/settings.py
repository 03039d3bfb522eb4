"""Every setting, from environment variables with the prefix ``KRONOS_``, as one frozen value.

Read once per process by ``get_settings``; everything below takes the value as an argument.
"""

import os
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from redis.exceptions import RedisError

from kronos_model.errors import CheckpointError, KronosError, OutOfMemory
from worker.connection import connect
from worker.contract.jobs import Limits
from worker.model_names import ModelName, parse_model_names
from worker.tls import TLS_FILES, TlsError, with_tls

PREFIX: Final = "KRONOS_"
MAX_FILE_BYTES: Final = 2**16
DEFAULT_REDIS_URL = "redis://127.0.0.1:6379/0"


class SettingsError(Exception):
    """Settings that cannot be used; the message names the variable and what it takes."""


class SettingFiles(PydanticBaseSettingsSource):
    """Settings from files: ``KRONOS_<NAME>_FILE`` names the one that holds it, as for Docker's secrets.

    pydantic-settings' own source for secrets takes the files' folder and fixed names, not a variable each.
    """

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """None where its variable is not set; raises SettingsError."""
        variable = f"{PREFIX}{field_name.upper()}"
        path = os.environ.get(f"{variable}_FILE")
        if not path:
            return None, field_name, False
        if os.environ.get(variable):
            raise SettingsError(f"{variable} and {variable}_FILE are both set: unset one of them")
        try:
            with Path(path).open("rb") as file:
                text = file.read(MAX_FILE_BYTES + 1).decode("utf-8").rstrip("\r\n")
        except (OSError, ValueError) as error:  # ValueError: not UTF-8, or no path at all
            reason = (error.strerror if isinstance(error, OSError) else None) or "it is not text in UTF-8"
            raise SettingsError(f"{variable}_FILE cannot be used: {path}: {reason}") from None
        if not text or len(text) > MAX_FILE_BYTES:
            size = "is empty" if not text else f"holds more than {MAX_FILE_BYTES} bytes"
            raise SettingsError(f"{variable}_FILE cannot be used: {path} {size}")
        return text, field_name, False

    def __call__(self) -> dict[str, Any]:
        named = {name: self.get_field_value(field, name)[0] for name, field in Settings.model_fields.items()}
        return {name: text for name, text in named.items() if text is not None}


class Settings(BaseSettings):
    """The service's settings. Names in the environment are these in capitals behind ``KRONOS_``.

    With ``_FILE`` behind, a variable names a file that holds the setting.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore", env_ignore_empty=True)

    # Before the URL, whose check writes them into it.
    redis_ca_file: Path | None = Field(
        None, description="certificates that sign Redis's, for rediss://; beside those of the system"
    )
    redis_certificate_file: Path | None = Field(
        None, description="certificate that this process shows a Redis which asks for one"
    )
    redis_key_file: Path | None = Field(
        None, description="its private key, without passphrase; where not set, it is in the same file"
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

    max_queue_jobs: int = Field(
        10_000, ge=1, description="jobs that one queue holds, of all priorities; further ones are refused"
    )
    low_priority_max_wait_s: float = Field(
        600, gt=0, description="a job of low priority counts as normal once it waited for this time"
    )
    result_ttl_s: int = Field(3600, ge=1, description="how long results stay")
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
    log_format: Literal["text", "json"] = Field(
        "text", description="logs as text, or as json: one object a line, and one line a job"
    )

    api_host: str = Field(
        "127.0.0.1", description="address of the HTTP API; any other than this machine's own needs keys"
    )
    api_port: int = Field(8000, ge=0, le=65535, description="its port; 0 takes a free one")
    api_keys: SecretStr | None = Field(
        None, description="keys of which each request names one, with commas or line ends between them"
    )
    api_wait_s: float = Field(
        60, ge=0, description="how long a request waits for its forecast before it is told where that will be"
    )
    api_max_body_bytes: int = Field(16 * 2**20, ge=1024, description="size of one request")
    api_max_upload_bytes: int = Field(256 * 2**20, ge=1024, description="size of one file of candles")
    api_cors_origins: str | None = Field(
        None,
        description="other sites whose pages may use the API, as https://example.org, with commas between",
    )

    flower_user: str = Field("kronos", description="Flower's user name")
    flower_password: SecretStr | None = Field(
        None, description="Flower's password; made up by `up` if not set"
    )

    @field_validator("redis_url")
    @classmethod
    def _check_redis_url(cls, url: SecretStr, info: ValidationInfo) -> SecretStr:
        text = url.get_secret_value()
        if (
            text == DEFAULT_REDIS_URL
        ):  # on this machine, where files for TLS that are set beside it mean nothing
            return url
        files = [info.data.get(f"redis_{part}_file") for part in ("ca", "certificate", "key")]
        try:
            if not text.startswith(("redis://", "rediss://")):
                raise ValueError
            # With ";" in it, kombu reads several URLs.
            if not text.isprintable() or ";" in text:
                raise ValueError
            text = with_tls(text, dict(zip(TLS_FILES, files, strict=True)))
            connect(text).connection_pool.make_connection()  # reads every part; nothing is sent
        except TlsError:
            raise
        except (RedisError, TypeError, ValueError):  # whose text may repeat the URL, password and all
            raise ValueError("write it like redis://:password@host:6379/0, or rediss:// for TLS") from None
        return SecretStr(text)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, SettingFiles(settings_cls)

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
        raise SettingsError(f"{name} cannot be used: {first['msg'].removeprefix('Value error, ')}") from None


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
