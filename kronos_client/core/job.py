"""Job: a checked job, ready to be sent."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.forecast import ForecastJob
from kronos_client.contract.jobs import check_series
from kronos_client.contract.names import Priority, checked_job_id
from kronos_client.core.forecast_request import fewer_paths, forecast_payload, without_defaults
from kronos_client.core.kinds import BACKTEST, FINETUNE, FORECAST, JobKind
from kronos_client.core.options import (
    BacktestJobOptions,
    DataSource,
    FinetuneOptions,
    ForecastOptions,
    SendingOptions,
)
from kronos_client.redis.message import canonical_json, kwargsrepr
from kronos_client.settings import ClientSettings

if TYPE_CHECKING:
    from kronos_client.core.long_request import ConfigSource


class Job(NamedTuple):
    """A job that may be sent any number of times under one id.

    Attributes:
        content: The job as canonical JSON, without its submission time.
        kwargsrepr: The arguments that Flower shows.
        calibrated_model: The model whose calibration it needs; None is the workers' own. False if it needs
            none.
    """

    id: str
    kind: JobKind[Any, Any]
    content: str
    device: str
    allow_fallback: bool
    priority: Priority
    kwargsrepr: str
    calibrated_model: str | Literal[False] | None = False
    deadline_s: float | None = None


def pop_sending(options: SendingOptions) -> tuple[str | None, float]:
    """Remove ``job_id`` and ``retry_for_s`` from an app's options, and return them."""
    return options.pop("job_id", None), options.pop("retry_for_s", 0.0)


def candles_job(candles: Any, options: ForecastOptions, job_id: str | None, settings: ClientSettings) -> Job:
    """Make and check a forecast of candles. Raises JobError."""
    limits = settings.limits()
    payload = forecast_payload(candles, limits=limits, **options)
    job = forecast_job(payload, job_id, settings)
    notes = fewer_paths(options, limits, len(payload["series"]))
    return job._replace(kind=FORECAST._replace(notes=notes)) if notes else job


def config_job(
    config: ConfigSource, name: str, options: FinetuneOptions, job_id: str | None, settings: ClientSettings
) -> Job:
    """Make and check a finetuning job. Raises JobError."""
    from kronos_client.core.long_request import finetune_payload

    return finetune_job(finetune_payload(config, name=name, **options), job_id, settings)


def data_job(
    data: DataSource, options: BacktestJobOptions, job_id: str | None, settings: ClientSettings
) -> Job:
    """Make and check a backtest of candles. Raises JobError."""
    from kronos_client.core.long_request import backtest_payload

    return backtest_job(backtest_payload(data, **options), job_id, settings)


def checked_job(
    kind: JobKind[Any, Any], payload: dict[str, Any], job_id: str | None, settings: ClientSettings
) -> Job:
    """Check a job in the contract's own form, as a worker will, but for its model's limit and its files.

    Raises:
        JobError: The error that the worker would return.
    """
    job_id, limits = checked_job_id(job_id), settings.limits()
    parsed = kind.parse(payload, limits)
    payload = without_defaults(payload) if isinstance(parsed, ForecastJob) else payload
    content = canonical_json(payload)
    actual, limit = len(content), limits.max_message_bytes
    if actual > limit:
        message = f"the job takes {actual} bytes, the limit is {limit}; {kind.if_too_large}"
        details = {"limit": limit, "actual": actual}
        raise JobError(ErrorCode.LIMIT_EXCEEDED, message, kind.candles_field, details)
    calibrated_model: str | Literal[False] | None = False
    if isinstance(parsed, ForecastJob):
        check_series(parsed, limits)
        calibrated_model = parsed.output.calibrated and parsed.model
    about = kwargsrepr({"job": payload}), calibrated_model, parsed.deadline_s
    sent_to = parsed.device, parsed.allow_fallback, parsed.priority
    return Job(job_id, kind, content, *sent_to, *about)


forecast_job: Final = partial(checked_job, FORECAST)
finetune_job: Final = partial(checked_job, FINETUNE)
backtest_job: Final = partial(checked_job, BACKTEST)
