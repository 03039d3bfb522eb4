"""Errors over HTTP: problem documents (RFC 9457) with our codes, and the status of each code."""

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
    """Codes of errors that only HTTP requests have. Jobs end with an ``ErrorCode``."""

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


_CODES: Final = {
    HTTPStatus.BAD_REQUEST: "UNSUPPORTED_VERSION BAD_MESSAGE INVALID_JSON BAD_REQUEST",
    HTTPStatus.UNAUTHORIZED: "UNAUTHORIZED",
    HTTPStatus.FORBIDDEN: "HOST_NOT_ALLOWED",
    HTTPStatus.NOT_FOUND: "LOST NOT_FOUND",
    HTTPStatus.METHOD_NOT_ALLOWED: "METHOD_NOT_ALLOWED",
    HTTPStatus.CONFLICT: "ID_CONFLICT CANCELLED RUN_LOCKED DATASET_EXISTS",
    HTTPStatus.GONE: "RESULT_EXPIRED",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "LIMIT_EXCEEDED RESULT_TOO_LARGE BODY_TOO_LARGE",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "UNSUPPORTED_MEDIA_TYPE",
    HTTPStatus.UNPROCESSABLE_ENTITY: """
        UNKNOWN_FIELD MISSING_FIELD BAD_TYPE BAD_VALUE BAD_ENCODING DUPLICATE_ID INVALID_INPUT
        PRED_LEN_TOO_LONG MISSING_COLUMN UNKNOWN_COLUMN LENGTH_MISMATCH EMPTY_SERIES NOT_FINITE
        VALUE_TOO_LARGE NON_POSITIVE_PRICE HIGH_BELOW_LOW NEGATIVE_VOLUME BAD_TIMESTAMP
        TIMESTAMPS_NOT_ASCENDING MIXED_TIMEZONES TIMEZONE_UNKNOWN TIMEZONE_MISMATCH CANNOT_INFER_TIMESTAMPS
        INVALID_DEVICE MODEL_NOT_ALLOWED INVALID_CONFIG TRAINING_DATA_INVALID TRAINING_DIVERGED
        DATA_NOT_ALLOWED""",
    HTTPStatus.TOO_MANY_REQUESTS: "QUEUE_FULL",
    HTTPStatus.INTERNAL_SERVER_ERROR: """
        CHECKPOINT_INVALID CHECKPOINT_MISSING CHECKPOINT_MISMATCH WORKER_LOST INTERNAL""",
    HTTPStatus.SERVICE_UNAVAILABLE: """
        NO_GPU_WORKER MODEL_CAPACITY CHECKPOINT_UNREACHABLE TRAINING_STOPPED OUT_OF_MEMORY ENQUEUE_UNCERTAIN
        BROKER_UNREACHABLE OVERLOADED""",
    HTTPStatus.GATEWAY_TIMEOUT: "DEADLINE TIMEOUT",
    HTTPStatus.INSUFFICIENT_STORAGE: "DISK_FULL",
}
STATUSES: Final[Mapping[str, HTTPStatus]] = {
    code: status for status, codes in _CODES.items() for code in codes.split()
}
"""The status of each code. A code that this version does not know is answered like INTERNAL."""

_CODES_OF_STATUSES: Final = {
    400: HttpCode.BAD_REQUEST,
    401: HttpCode.UNAUTHORIZED,
    404: HttpCode.NOT_FOUND,
    405: HttpCode.METHOD_NOT_ALLOWED,
    413: HttpCode.BODY_TOO_LARGE,
    415: HttpCode.UNSUPPORTED_MEDIA_TYPE,
}
_DETAILS_OF_STATUSES: Final = {
    404: "nothing is at this address; see /v1/openapi.json for those that exist",
    405: "this address does not take that method; see the Allow header",
}


class Problem(BaseModel):
    """An error as in RFC 9457, with our ``code``, ``field`` and ``details``."""

    type: str = Field(examples=[f"{TYPE_PREFIX}HIGH_BELOW_LOW"])
    title: str = Field(description="of the HTTP status", examples=["Unprocessable Entity"])
    status: int = Field(examples=[422])
    detail: str = Field(description="what is wrong and what to do")
    code: str = Field(examples=["HIGH_BELOW_LOW"])
    field: str | None = Field(default=None, description="the field at fault", examples=["candles.3.high"])
    details: dict[str, Any] = {}
    job_id: str | None = None


class HttpError(HTTPException):
    """An error that only HTTP requests have. FastAPI lets HTTPExceptions pass while it reads a body."""

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
    """A job's error with the job's id, which the problem and its headers contain."""

    def __init__(self, error: JobError, job_id: str) -> None:
        super().__init__(str(error))
        self.error = error
        self.job_id = job_id

    def with_others(self, job_ids: list[str]) -> "JobFailure":
        """This failure, with the ids of the other jobs of the same request in its details."""
        error = self.error
        details = error.details | {"other_jobs": job_ids}
        return JobFailure(JobError(error.code, error.message, error.field, details), self.job_id)


def status_of(code: str) -> HTTPStatus:
    """The status of a code; 500 if this version does not know the code."""
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
    """The problem document for a code, as a response."""
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
    all_headers = dict(headers or {})
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        all_headers["Retry-After"] = str(content.details.get("retry_after_s", UNAVAILABLE_RETRY_S))
    elif status == HTTPStatus.SERVICE_UNAVAILABLE:
        all_headers["Retry-After"] = str(UNAVAILABLE_RETRY_S)
    if job_id is not None:
        all_headers["X-Job-Id"] = job_id
    return Response(to_json(content), int(status), all_headers, MEDIA_TYPE)


def example_problem() -> dict[str, Any]:
    """A sample problem for the OpenAPI description."""
    code, field = ErrorCode.HIGH_BELOW_LOW, "candles.3.high"
    message = f"{field}, row 3: 185.1 is below the low of the same bar"
    example: dict[str, Any] = from_json(bytes(problem(code, message, field, {"row": 3}).body))
    return example


async def on_job_error(request: Request, error: Exception) -> Response:
    """Answer a request that raised JobError or JobFailure."""
    job_id: str | None = None
    if isinstance(error, JobFailure):
        job_id = error.job_id
        error = error.error
    assert isinstance(error, JobError)
    job_id = job_id or error.details.get("job_id")
    return problem(error.code, error.message, error.field, error.details, job_id=job_id)


async def on_http_error(request: Request, error: Exception) -> Response:
    """Answer a request that raised HTTPException: our ``HttpError``, or one of Starlette or FastAPI."""
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
    """Answer a request that does not match its model, by the first error that pydantic found."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place, *path = first["loc"]
    kind = str(first["type"])
    context = first.get("ctx", {})
    if kind == "json_invalid":
        reason = str(context.get("error", ""))[:MAX_REASON_CHARS]
        return problem(HttpCode.INVALID_JSON, f"the body is not JSON: {reason}")
    if "field" in context:  # a check of several fields names the one at fault
        path.append(context["field"])
    # After "candles" pydantic names the kind that it read, which the request does not contain.
    pairs = zip([None, *path], path, strict=False)
    parts = [part for before, part in pairs if before != "candles" or part not in CANDLE_KINDS]
    field = dotted(parts, MAX_FIELD_CHARS)[:MAX_FIELD_CHARS] or str(place)
    reason = str(first["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return problem(_code_of(kind), f"{field}: {reason[:MAX_REASON_CHARS]}", field)


def _code_of(kind: str) -> ErrorCode:
    if kind == "missing":
        return ErrorCode.MISSING_FIELD
    if kind == "extra_forbidden":
        return ErrorCode.UNKNOWN_FIELD
    if kind == "length_mismatch":
        return ErrorCode.LENGTH_MISMATCH
    is_type = kind.endswith(("_type", "_parsing")) or kind == "model_attributes_type"
    return ErrorCode.BAD_TYPE if is_type else ErrorCode.BAD_VALUE
