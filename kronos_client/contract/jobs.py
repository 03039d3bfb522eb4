"""Reading a forecast job: from decoded JSON to a checked job, and on to arrays."""

from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import ValidationError

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.forecast import ForecastJob, WireModel
from kronos_client.contract.job_limits import Limits
from kronos_client.contract.limits import check_job, check_payload
from kronos_client.contract.names import SCHEMA_VERSION
from kronos_client.contract.preparing import PreparedSeries, prepare
from kronos_client.contract.refusals import refusal
from kronos_model.text import excerpt

__all__ = ["ForecastJob", "Limits", "PreparedSeries", "parse_job", "prepare"]

AnyJob = TypeVar("AnyJob", bound=WireModel)


def parse_job(payload: object, limits: Limits) -> ForecastJob:
    """Check a job from decoded JSON: its form, ranges and size. ``prepare`` checks columns and timestamps.

    Raises:
        JobError: Names the first field at fault; nothing else is raised.
    """
    job = read_job(payload, limits)
    check_job(job, limits)
    return job


def read_job(payload: object, limits: Limits) -> ForecastJob:
    """The part of ``parse_job`` that needs no model: version, absurd sizes, then fields and types."""
    return read_fields(ForecastJob, payload, lambda given: check_payload(given, limits))


def read_fields(
    model: type[AnyJob], payload: object, check_size: Callable[[dict[Any, Any]], object]
) -> AnyJob:
    """The fields of a job from decoded JSON: its version and size are checked first.

    Raises:
        JobError: Names the first field at fault; nothing else is raised.
    """
    if not isinstance(payload, dict):
        raise JobError(ErrorCode.BAD_TYPE, f"job must be an object, not {excerpt(payload)}", "job")
    _check_version(payload.get("schema_version", SCHEMA_VERSION))
    check_size(payload)
    try:
        return model.model_validate(payload)
    except ValidationError as error:
        raise refusal(error) from None


def _check_version(version: object) -> None:
    """Refuse a ``schema_version`` that this code does not read, before anything else is checked.

    Raises:
        JobError: BAD_TYPE, UNSUPPORTED_VERSION.
    """
    field = "schema_version"
    if not isinstance(version, int) or isinstance(version, bool):
        raise JobError(ErrorCode.BAD_TYPE, f"{field} must be an integer, not {excerpt(version)}", field)
    if not 1 <= version <= SCHEMA_VERSION:
        known = f"only 1 to {SCHEMA_VERSION}: update the worker, or send a supported version"
        message = f"{field} {excerpt(version)} is not supported, {known}"
        raise JobError(ErrorCode.UNSUPPORTED_VERSION, message, field, {"newest": SCHEMA_VERSION})
