"""Settings from environment variables with the prefix ``KRONOS_``, as one frozen value.

``ClientSettings`` holds a client's settings, ``ServiceSettings`` also those that workers, the HTTP API and
the command line share. The other packages' settings extend them, so each setting stands once.
"""

import logging
import os
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, ValidationInfo, field_validator
from redis.exceptions import RedisError

from kronos_client.contract.job_limits import Limits
from kronos_client.contract.names import EVENT_EXCHANGE
from kronos_client.redis.connection import connect
from kronos_client.redis.queues import QueueNames
from kronos_client.redis.url import TLS_FILES, TlsError, with_tls
from kronos_model.checkpoints.names import full_name

PREFIX: Final = "KRONOS_"
MAX_FILE_BYTES: Final = 2**16
UNKNOWN_MODEL: Final = 2**31
"""Stands for a model's limit on the horizon, where the model is not known."""
DEFAULT_REDIS_URL = "redis://127.0.0.1:6379/0"
LIMITS: Final = Limits()
RETIRED: Final = {
    "api_body_bytes_per_s": "unset it: a body must bring 32 KiB a second",
    "api_body_timeout_s": "unset it: a body may pause for 30 s",
    "api_max_body_bytes": "set KRONOS_MAX_MESSAGE_BYTES instead, to half of it",
    "flower_user": "unset it, and log in as kronos",
    "low_priority_max_wait_s": "unset it: it is ignored, since each priority has its share of the takes",
    "max_dead_messages": "unset it: 1000 are kept",
    "max_inline_bars": "unset it, and put larger candles into the workers' data folder",
    "max_prefill_bars": "unset it: the device decides",
    "max_result_bytes": "set KRONOS_MAX_MESSAGE_BYTES instead, to half of it",
    "model_revision": "write it into KRONOS_MODEL, as ORGANISATION/MODEL@REVISION",
    "shared_exchanges": "unset it once no worker of 0.1.0 is left",
    "tokenizer_revision": "write it into KRONOS_TOKENIZER, as ORGANISATION/TOKENIZER@REVISION",
}
"""Settings that the next version will not have, and what to do. In this one they still work."""

log = logging.getLogger(__name__)


class SettingsError(Exception):
    """A setting cannot be used; the message names the variable and its valid values."""


def _given(name: str) -> str | None:
    """The text of a setting in the environment or in a file, as for Docker's secrets; None if it is not set.

    Raises:
        SettingsError: Both are set, or the file cannot be used.
    """
    variable = f"{PREFIX}{name.upper()}"
    text, path = os.environ.get(variable), os.environ.get(f"{variable}_FILE")
    if not path:
        return text or None
    if text:
        raise SettingsError(f"{variable} and {variable}_FILE are both set: unset one of them")
    try:
        with Path(path).open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1).decode("utf-8").rstrip("\r\n")
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or not a path
        reason = (error.strerror if isinstance(error, OSError) else None) or "it is not text in UTF-8"
        raise SettingsError(f"{variable}_FILE cannot be used: {path}: {reason}") from None
    if not text or len(text) > MAX_FILE_BYTES:
        size = "is empty" if not text else f"holds more than {MAX_FILE_BYTES} bytes"
        raise SettingsError(f"{variable}_FILE cannot be used: {path} {size}")
    return text


def twice_a_message(given: dict[str, Any]) -> int:
    """The default of limits that follow from ``max_message_bytes``."""
    return 2 * int(given["max_message_bytes"])


class ClientSettings(BaseModel):
    """A client's settings. Each variable is ``KRONOS_`` and the setting's name in capitals.

    A variable that ends in ``_FILE`` names a file that holds the setting.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", validate_default=True)

    # The files come before the URL, whose validator reads them.
    redis_ca_file: Path | None = None
    """authorities that sign Redis's certificate, for rediss://, in addition to the system's"""
    redis_certificate_file: Path | None = None
    """this process's own certificate, for a Redis that asks for one"""
    redis_key_file: Path | None = None
    """private key of that certificate, without passphrase; default: in the same file"""
    redis_url: SecretStr = SecretStr(DEFAULT_REDIS_URL)
    """Redis for queues, results and announcements: `redis://`, `rediss://` for TLS, or
    `sentinel://host1:26379,host2:26379/0?master=NAME`"""
    redis_min_replicas: int = Field(0, ge=0)
    """replicas of Redis that must have a job, an outcome or a feed's bars before it counts as accepted"""

    max_series: int = Field(LIMITS.max_series, ge=1)
    """series in one job"""
    max_bars: int = Field(LIMITS.max_bars, ge=1)
    """bars of lookback in one series"""
    max_sample_count: int = Field(LIMITS.max_sample_count, ge=1)
    """sample paths of one series"""
    max_paths: int = Field(LIMITS.max_paths, ge=1)
    """sample paths of one job, over all its series"""
    max_message_bytes: int = Field(LIMITS.max_message_bytes, ge=1024)
    """bytes of one job as JSON"""
    max_result_bytes: int = Field(default_factory=twice_a_message, ge=1024)
    """Bytes of one result as JSON, estimated."""
    max_inline_bars: int = Field(LIMITS.max_inline_bars, ge=1)
    """Bars of all instruments that a finetuning job or backtest may carry itself."""

    queue_prefix: str = Field("", pattern=r"^[A-Za-z0-9._:-]{0,64}$")
    """start of the names of all queues and exchanges, for a Redis database where another app uses `cpu` or
    `gpu`"""
    shared_exchanges: bool = False
    """Whether control commands and events use Celery's default exchanges, as in 0.1.0, during an upgrade."""
    max_queue_jobs: int = Field(10_000, ge=1)
    """jobs that wait in one queue, all priorities together; more are refused"""
    result_ttl_s: int = Field(3600, ge=1)
    """seconds that a result is kept"""
    share_equal_jobs: bool = False
    """whether forecasts of equal content, seeds and model are computed once while the result is kept"""

    def __init__(self, **values: Any) -> None:
        given = {name: _given(name) for name in type(self).model_fields.keys() - values.keys()}
        super().__init__(**{name: text for name, text in given.items() if text is not None}, **values)

    @field_validator("redis_url")
    @classmethod
    def _check_redis_url(cls, url: SecretStr, info: ValidationInfo) -> SecretStr:
        text = url.get_secret_value()
        if text == DEFAULT_REDIS_URL:  # on this machine, without TLS
            return url
        files = [info.data.get(f"redis_{part}_file") for part in ("ca", "certificate", "key")]
        try:
            is_redis = text.startswith(("redis://", "rediss://", "sentinel://"))
            if not is_redis or not text.isprintable() or ";" in text:  # with ";", kombu reads several URLs
                raise ValueError
            text = with_tls(text, dict(zip(TLS_FILES, files, strict=True)))
            connect(text).connection_pool.make_connection()  # reads every part; nothing is sent
        except TlsError:
            raise
        except (RedisError, TypeError, ValueError):  # its text may contain the URL and password
            raise ValueError(
                "write it like redis://:password@host:6379/0, rediss:// for TLS, or for Sentinel "
                "sentinel://:password@host1:26379,host2:26379/0?master=mymaster, with &tls=true for TLS"
            ) from None
        return SecretStr(text)

    @classmethod
    def load(cls, **overrides: Any) -> Self:
        """Settings from the environment, with ``overrides`` on top.

        Raises:
            SettingsError: a value cannot be used; the message names its variable.
        """
        for name in filter(_given, RETIRED):
            _warn_of(name)
        try:
            return cls(**overrides)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            name = PREFIX + "_".join(str(part) for part in first["loc"]).upper()
            reason = first["msg"].removeprefix("Value error, ")
            raise SettingsError(f"{name} cannot be used: {reason}") from None

    def with_redis_url(self, url: str) -> Self:
        """The same settings for another Redis; raises SettingsError."""
        return self.load(**(self.model_dump() | {"redis_url": SecretStr(url)}))

    @property
    def queue_names(self) -> QueueNames:
        """The names of all queues."""
        return QueueNames(self.queue_prefix)

    @property
    def event_exchange(self) -> str:
        """The exchange of Celery's events. All apps on a database share Celery's own."""
        return "celeryev" if self.shared_exchanges else f"{self.queue_prefix}{EVENT_EXCHANGE}"

    def limits(self, max_pred_len: int = UNKNOWN_MODEL) -> Limits:
        """The limits of a job; ``max_pred_len`` is the model's max_context."""
        return _limits(self, max_pred_len)


@cache
def _warn_of(name: str) -> None:
    """Warn once in each process."""
    log.warning("the next version will not have %s%s: %s", PREFIX, name.upper(), RETIRED[name])


@lru_cache(maxsize=64)
def _limits(settings: ClientSettings, max_pred_len: int) -> Limits:
    own = settings.model_dump(include=Limits.model_fields.keys() - {"max_pred_len"})
    return Limits(max_pred_len=max_pred_len, **own)


@cache
def get_settings() -> ClientSettings:
    """The settings of this process's clients, read on first use."""
    return ClientSettings.load()


def settings_for(url: str | None, settings: ClientSettings | None) -> ClientSettings:
    """``settings``, or those of the environment; for the Redis at ``url``, if given."""
    settings = settings or get_settings()
    return settings if url is None else settings.with_redis_url(url)


_PART: Final = r"\s*(?P<{0}>[^=@\s][^=@]*?)(?:@(?P<{0}_revision>[^=]*[^=\s]))?\s*"
_ENTRY: Final = re.compile(_PART.format("model") + f"(?:={_PART.format('tokenizer')})?")


@dataclass(frozen=True)
class ModelSpec:
    """A model to load. Jobs name it by ``model``.

    Attributes:
        model, tokenizer: A bundled name, a folder or a hub id. By default, the default model, and the
            tokenizer that belongs to the model.
        model_revision, tokenizer_revision: Branch, tag or commit; for hub ids only.
    """

    model: str | None
    tokenizer: str | None = None
    model_revision: str | None = None
    tokenizer_revision: str | None = None


def parse_model_specs(text: str | None) -> dict[str, ModelSpec]:
    """Read a list of models separated by commas, by their names in jobs. Raises ValueError."""
    names: dict[str, ModelSpec] = {}
    for entry in filter(None, map(str.strip, (text or "").split(","))):
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise ValueError(
                f"{entry!r} is not a model's name; write MODEL, MODEL=TOKENIZER or MODEL@REVISION"
            )
        model = full_name(match["model"])
        if model in names:
            raise ValueError(f"{model!r} is listed twice: remove one")
        names[model] = ModelSpec(**match.groupdict() | {"model": model})
    return names


class ServiceSettings(ClientSettings):
    """The settings that workers, the HTTP API and the command line share."""

    models: str | None = None
    """further models that jobs may name, separated by commas: `MODEL` or `MODEL=TOKENIZER`, each with or
    without `@REVISION`"""
    model_folder: Path | None = None
    """folder of registered models, which finetuning writes and forecast jobs name, and of backtests'
    reports"""
    data_folder: Path | None = None
    """folder of candles that finetuning jobs and backtests name; default: jobs must carry their candles"""
    log_format: Literal["text", "json"] = "text"
    """format of logs; `json` is one object per line, and one line per job"""
    api_host: str = "127.0.0.1"
    """address that the HTTP API serves; one that other machines reach needs keys"""
    api_port: int = Field(8000, ge=0, le=65535)
    """port of the HTTP API; 0 takes a free one"""

    @field_validator("models")
    @classmethod
    def _check_models(cls, text: str | None) -> str | None:
        parse_model_specs(text)
        return text

    @property
    def further_models(self) -> dict[str, ModelSpec]:
        """The models that jobs may name in addition to the worker's own."""
        return parse_model_specs(self.models)
