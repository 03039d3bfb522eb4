"""Errors over HTTP: problem documents (RFC 9457) with our codes, and the status that each code has."""

from collections.abc import Mapping
from enum import StrEnum
from http import HTTPStatus
from typing import Any, Final

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel, Field
from pydantic_core import from_json, to_json
from starlette.exceptions import HTTPException

from api_stub.candles import CANDLE_KINDS
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_model.text import dotted

MEDIA_TYPE: Final = "application/problem+json"
TYPE_PREFIX: Final = "urn:kronos:error:"
UNAVAILABLE_RETRY_S: Final = 5
MAX_FIELD_CHARS: Final = 200
MAX_REASON_CHARS: Final = 300


class HttpCode(StrEnum):
    """Codes of what can only go wrong over HTTP; jobs end with an ``ErrorCode``."""

    INVALID_JSON = "INVALID_JSON"
    BAD_REQUEST = "BAD_REQUEST"
    UNAUTHORIZED = "UNAUTHORIZED"
    HOST_NOT_ALLOWED = "HOST_NOT_ALLOWED"
    NOT_FOUND = "NOT_FOUND"
    METHOD_NOT_ALLOWED = "METHOD_NOT_ALLOWED"
    DATASET_EXISTS = "DATASET_EXISTS"
    BODY_TOO_LARGE = "BODY_TOO_LARGE"
    UNSUPPORTED_MEDIA_TYPE = "UNSUPPORTED_MEDIA_TYPE"
    OVERLOADED = "OVERLOADED"


STATUSES: Final[Mapping[str, HTTPStatus]] = {
    # What was sent
    ErrorCode.UNSUPPORTED_VERSION: HTTPStatus.BAD_REQUEST,
    ErrorCode.UNKNOWN_FIELD: HTTPStatus.UNPROCESSABLE_ENTITY,
    ErrorCode.MISSING_FIELD: HTTPStatus.UNPROCESSABLE_ENTITY,
    ErrorCode.BAD_TYPE: HTTPStatus.UNPROCESSABLE_ENTITY,
    ErrorCode.BAD_VALUE: HTTPStatus.UNPROCESSABLE_ENTITY,
    ErrorCode.BAD_ENCODING: HTTPStatus.UNPROCESSABLE_ENTITY,
    ErrorCode.DUPLICATE_ID: HTTPStatus.UNPROCESSABLE_ENTITY,
    ErrorCode.INVALID_INPUT: HTTPStatus.UNPROCESSABLE_ENTITY,
    ErrorCode.LIMIT_EXCEEDED: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    ErrorCode.PRED_LEN_TOO_LONG: HTTPStatus.UNPROCESSABLE_ENTITY,
    ErrorCode.RESULT_TOO_LARGE: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    ErrorCode.MISSING_COLUMN: HTTPStatus.UNPROCESSABLE_ENTITY,
    ErrorCode.UNKNOWN_COLUMN: HTTPStatus.UNPROCESSABLE_ENTITY,
    ErrorCode.LENGTH_MISMATCH: HTTPStatus.UNPROCESSABLE_ENTITY,
    ErrorCode.EMPTY_SERIES: HTTPStatus.UNPROCESSABLE_ENTITY,
    ErrorCode.NOT_FINITE: HTTPStatus.UNPROCESSABLE_ENTITY,
    ErrorCode.VALUE_TOO_LARGE: HTTPStatus.UNPROCESSABLE_ENTITY,
    ErrorCode.NON_POSITIVE_PRICE: HTTPStatus.UNPROCESSABLE_ENTITY,
    ErrorCode.HIGH_BELOW_LOW: HTTPStatus.UNPROCESSABLE_ENTITY,
    ErrorCode.NEGATIVE_VOLUME: HTTPStatus.UNPROCESSABLE_ENTITY,
    ErrorCode.BAD_TIMESTAMP: HTTPStatus.UNPROCESSABLE_ENTITY,
    ErrorCode.TIMESTAMPS_NOT_ASCENDING: HTTPStatus.UNPROCESSABLE_ENTITY,
    ErrorCode.MIXED_TIMEZONES: HTTPStatus.UNPROCESSABLE_ENTITY,
    ErrorCode.TIMEZONE_UNKNOWN: HTTPStatus.UNPROCESSABLE_ENTITY,
    ErrorCode.TIMEZONE_MISMATCH: HTTPStatus.UNPROCESSABLE_ENTITY,
    ErrorCode.CANNOT_INFER_TIMESTAMPS: HTTPStatus.UNPROCESSABLE_ENTITY,
    ErrorCode.INVALID_DEVICE: HTTPStatus.UNPROCESSABLE_ENTITY,
    ErrorCode.MODEL_NOT_ALLOWED: HTTPStatus.UNPROCESSABLE_ENTITY,
    ErrorCode.INVALID_CONFIG: HTTPStatus.UNPROCESSABLE_ENTITY,
    ErrorCode.TRAINING_DATA_INVALID: HTTPStatus.UNPROCESSABLE_ENTITY,
    ErrorCode.TRAINING_DIVERGED: HTTPStatus.UNPROCESSABLE_ENTITY,
    ErrorCode.DATA_NOT_ALLOWED: HTTPStatus.UNPROCESSABLE_ENTITY,
    ErrorCode.BAD_MESSAGE: HTTPStatus.BAD_REQUEST,
    # What is there already, or no longer
    ErrorCode.ID_CONFLICT: HTTPStatus.CONFLICT,
    ErrorCode.CANCELLED: HTTPStatus.CONFLICT,
    ErrorCode.RUN_LOCKED: HTTPStatus.CONFLICT,
    ErrorCode.LOST: HTTPStatus.NOT_FOUND,
    ErrorCode.RESULT_EXPIRED: HTTPStatus.GONE,
    # What this service cannot do now, or not in time
    ErrorCode.QUEUE_FULL: HTTPStatus.TOO_MANY_REQUESTS,
    ErrorCode.NO_GPU_WORKER: HTTPStatus.SERVICE_UNAVAILABLE,
    ErrorCode.MODEL_CAPACITY: HTTPStatus.SERVICE_UNAVAILABLE,
    ErrorCode.CHECKPOINT_UNREACHABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    ErrorCode.TRAINING_STOPPED: HTTPStatus.SERVICE_UNAVAILABLE,
    ErrorCode.OUT_OF_MEMORY: HTTPStatus.SERVICE_UNAVAILABLE,
    ErrorCode.ENQUEUE_UNCERTAIN: HTTPStatus.SERVICE_UNAVAILABLE,
    ErrorCode.BROKER_UNREACHABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    ErrorCode.DISK_FULL: HTTPStatus.INSUFFICIENT_STORAGE,
    ErrorCode.DEADLINE: HTTPStatus.GATEWAY_TIMEOUT,
    ErrorCode.TIMEOUT: HTTPStatus.GATEWAY_TIMEOUT,
    # What is wrong with it
    ErrorCode.CHECKPOINT_INVALID: HTTPStatus.INTERNAL_SERVER_ERROR,
    ErrorCode.CHECKPOINT_MISSING: HTTPStatus.INTERNAL_SERVER_ERROR,
    ErrorCode.CHECKPOINT_MISMATCH: HTTPStatus.INTERNAL_SERVER_ERROR,
    ErrorCode.WORKER_LOST: HTTPStatus.INTERNAL_SERVER_ERROR,
    ErrorCode.INTERNAL: HTTPStatus.INTERNAL_SERVER_ERROR,
    # HTTP's own
    HttpCode.INVALID_JSON: HTTPStatus.BAD_REQUEST,
    HttpCode.BAD_REQUEST: HTTPStatus.BAD_REQUEST,
    HttpCode.UNAUTHORIZED: HTTPStatus.UNAUTHORIZED,
    HttpCode.HOST_NOT_ALLOWED: HTTPStatus.FORBIDDEN,
    HttpCode.NOT_FOUND: HTTPStatus.NOT_FOUND,
    HttpCode.METHOD_NOT_ALLOWED: HTTPStatus.METHOD_NOT_ALLOWED,
    HttpCode.DATASET_EXISTS: HTTPStatus.CONFLICT,
    HttpCode.BODY_TOO_LARGE: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HttpCode.UNSUPPORTED_MEDIA_TYPE: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    HttpCode.OVERLOADED: HTTPStatus.SERVICE_UNAVAILABLE,
}
"""The one table from codes to HTTP; a code of a newer worker is that of INTERNAL."""

_CODES_OF_STATUSES: Final = {
    400: HttpCode.BAD_REQUEST,
    401: HttpCode.UNAUTHORIZED,
    404: HttpCode.NOT_FOUND,
    405: HttpCode.METHOD_NOT_ALLOWED,
    413: HttpCode.BODY_TOO_LARGE,
    415: HttpCode.UNSUPPORTED_MEDIA_TYPE,
}
_DETAILS_OF_STATUSES: Final = {
    404: "there is nothing at this address",
    405: "this address does not take that method; see the Allow header",
}


class Problem(BaseModel):
    """An error, as RFC 9457 has it, with our ``code``, ``field`` and ``details``."""

    type: str = Field(examples=[f"{TYPE_PREFIX}HIGH_BELOW_LOW"])
    title: str = Field(description="of the status", examples=["Unprocessable Entity"])
    status: int = Field(examples=[422])
    detail: str = Field(description="what is wrong and what to do")
    code: str = Field(examples=["HIGH_BELOW_LOW"])
    field: str | None = Field(default=None, description="at fault", examples=["candles.3.high"])
    details: dict[str, Any] = {}
    job_id: str | None = None


class HttpError(HTTPException):
    """What only HTTP knows of. An HTTPException, which FastAPI lets through while it reads a body."""

    def __init__(
        self,
        code: HttpCode,
        message: str,
        field: str | None = None,
        details: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(STATUSES[code], message, dict(headers or {}))
        self.code = code
        self.message = message
        self.field = field
        self.details = dict(details or {})


class JobFailure(Exception):
    """A job's error, with the job's id, which the problem and its headers then name."""

    def __init__(self, error: JobError, job_id: str) -> None:
        super().__init__(str(error))
        self.error = error
        self.job_id = job_id

    def beside(self, job_ids: list[str]) -> "JobFailure":
        """The same, with the ids of the other jobs of its request."""
        error = self.error
        details = error.details | {"other_jobs": job_ids}
        return JobFailure(JobError(error.code, error.message, error.field, details), self.job_id)


def status_of(code: str) -> HTTPStatus:
    """The status of a code, also of one that this version does not know."""
    return STATUSES.get(code, HTTPStatus.INTERNAL_SERVER_ERROR)


def problem(
    code: str,
    message: str,
    field: str | None = None,
    details: Mapping[str, Any] | None = None,
    *,
    job_id: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """The response for a code."""
    status = status_of(code)
    content = Problem(
        type=f"{TYPE_PREFIX}{code}",
        title=status.phrase,
        status=status,
        detail=message,
        code=code,
        field=field,
        details=dict(details or {}),
        job_id=job_id,
    )
    sent = dict(headers or {})
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        sent["Retry-After"] = str((details or {}).get("retry_after_s", UNAVAILABLE_RETRY_S))
    elif status == HTTPStatus.SERVICE_UNAVAILABLE:
        sent["Retry-After"] = str(UNAVAILABLE_RETRY_S)
    if job_id is not None:
        sent["X-Job-Id"] = job_id
    return Response(to_json(content), int(status), sent, MEDIA_TYPE)


def example_problem() -> dict[str, Any]:
    """What one looks like, for the description."""
    code, field = ErrorCode.HIGH_BELOW_LOW, "candles.3.high"
    message = f"{field}, row 3: 185.1 is below the low of the same bar"
    body = bytes(problem(code, message, field, {"row": 3}).body)
    example: dict[str, Any] = from_json(body)
    return example


def job_problem(error: JobError, job_id: str | None = None) -> Response:
    """The response for a job's error, or for what could not become a job."""
    return problem(
        error.code,
        error.message,
        error.field,
        error.details,
        job_id=job_id or error.details.get("job_id"),
    )


async def on_job_error(request: Request, error: Exception) -> Response:
    """FastAPI's handler for JobError."""
    assert isinstance(error, JobError)
    return job_problem(error)


async def on_job_failure(request: Request, failure: Exception) -> Response:
    """Likewise for JobFailure."""
    assert isinstance(failure, JobFailure)
    return job_problem(failure.error, failure.job_id)


async def on_http_error(request: Request, error: Exception) -> Response:
    """Likewise for HTTPException, our own and what Starlette and FastAPI raise."""
    assert isinstance(error, HTTPException)
    if isinstance(error, HttpError):
        return problem(error.code, error.message, error.field, error.details, headers=error.headers)
    code = _CODES_OF_STATUSES.get(error.status_code, HttpCode.BAD_REQUEST)
    message = _DETAILS_OF_STATUSES.get(error.status_code, str(error.detail))
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED and (
        methods := request.app.state.methods.of(request.scope)
    ):
        headers["Allow"] = ", ".join(methods)
    return problem(code, message, headers=headers)


async def on_validation_error(request: Request, error: Exception) -> Response:
    """Likewise for what does not have the form of a request: the first thing that is wrong with it."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where, *path = first["loc"]
    kind = str(first["type"])
    if kind == "json_invalid":
        reason = str(first.get("ctx", {}).get("error", ""))[:MAX_REASON_CHARS]
        return problem(HttpCode.INVALID_JSON, f"the body is not JSON: {reason}")
    # A check of several fields names the one that it is about. Pydantic names which kind of candles it read.
    path += [first.get("ctx", {}).get("field")] * ("field" in first.get("ctx", {}))
    parts = [part for before, part in zip([None, *path], path, strict=False) if not _is_kind(before, part)]
    field = dotted(parts, MAX_FIELD_CHARS)[:MAX_FIELD_CHARS] or str(where)
    reason = str(first["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return problem(_code_of(kind), f"{field}: {reason[:MAX_REASON_CHARS]}", field)


def _is_kind(before: object, part: object) -> bool:
    return before == "candles" and part in CANDLE_KINDS


def _code_of(kind: str) -> ErrorCode:
    """Of what pydantic found."""
    if kind == "missing":
        return ErrorCode.MISSING_FIELD
    if kind == "extra_forbidden":
        return ErrorCode.UNKNOWN_FIELD
    if kind == "length_mismatch":
        return ErrorCode.LENGTH_MISMATCH
    is_type = kind.endswith(("_type", "_parsing")) or kind == "model_attributes_type"
    return ErrorCode.BAD_TYPE if is_type else ErrorCode.BAD_VALUE
