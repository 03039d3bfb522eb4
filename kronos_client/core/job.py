"""Job: a checked job, ready to be sent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.forecast import ForecastJob
from kronos_client.contract.jobs import prepare
from kronos_client.contract.names import Kind, Priority, checked_job_id
from kronos_client.core.forecast_request import ForecastOptions, SubmitOptions, forecast_payload
from kronos_client.core.kinds import BACKTEST, FINETUNE, FORECAST, JobKind
from kronos_client.redis.job_store import canonical_json
from kronos_client.redis.shown import shown_arguments
from kronos_client.settings import ClientSettings

if TYPE_CHECKING:
    from kronos_client.core.backtest_request import BacktestJobOptions
    from kronos_client.core.finetune_request import ConfigSource, DataSource, FinetuneOptions

IF_TOO_LARGE: Final[dict[Kind, tuple[str, str]]] = {
    "forecast": ("series", "send fewer series"),
    "finetune": ("data.instruments", "put the candles into the workers' data folder"),
    "backtest": ("data.instruments", "put the candles into the workers' data folder"),
}
"""The field at fault, and the remedy."""


@dataclass(frozen=True)
class Job:
    """A job that may be sent any number of times under one id.

    Attributes:
        content: The job as canonical JSON, without its submission time.
        shown: The arguments that Flower shows.
        calibrated_model: The model whose calibration it needs; None is the workers' own. False if it needs
            none.
    """

    id: str
    kind: JobKind[Any, Any]
    content: str
    device: str
    allow_fallback: bool
    priority: Priority
    shown: str
    calibrated_model: str | Literal[False] | None = False


def pop_sending(options: SubmitOptions | FinetuneOptions | BacktestJobOptions) -> tuple[str | None, float]:
    """Remove ``job_id`` and ``retry_for_s`` from an app's options, and return them."""
    return options.pop("job_id", None), options.pop("retry_for_s", 0.0)


def candles_job(candles: Any, options: ForecastOptions, job_id: str | None, settings: ClientSettings) -> Job:
    """Make and check a forecast of candles. Raises JobError."""
    return forecast_job(forecast_payload(candles, limits=settings.limits(), **options), job_id, settings)


def config_job(
    config: ConfigSource, name: str, options: FinetuneOptions, job_id: str | None, settings: ClientSettings
) -> Job:
    """Make and check a finetuning job. Raises JobError."""
    from kronos_client.core.finetune_request import finetune_payload

    return finetune_job(finetune_payload(config, name=name, **options), job_id, settings)


def data_job(
    data: DataSource, options: BacktestJobOptions, job_id: str | None, settings: ClientSettings
) -> Job:
    """Make and check a backtest of candles. Raises JobError."""
    from kronos_client.core.backtest_request import backtest_payload

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
    content = canonical_json(payload)
    if len(content) > limits.max_message_bytes:
        field, remedy = IF_TOO_LARGE[kind.name]
        raise JobError(
            ErrorCode.LIMIT_EXCEEDED,
            f"the job takes {len(content)} bytes, the limit is {limits.max_message_bytes}; {remedy}",
            field,
            {"limit": limits.max_message_bytes, "actual": len(content)},
        )
    shown = shown_arguments({"job": payload})
    job = Job(job_id, kind, content, parsed.device, parsed.allow_fallback, parsed.priority, shown)
    if isinstance(parsed, ForecastJob):
        prepare(parsed, job_id, limits)
        return replace(job, calibrated_model=parsed.model) if parsed.output.calibrated else job
    return job


forecast_job: Final = partial(checked_job, FORECAST)
finetune_job: Final = partial(checked_job, FINETUNE)
backtest_job: Final = partial(checked_job, BACKTEST)
