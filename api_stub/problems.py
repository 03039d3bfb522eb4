"""Errors over HTTP: problem documents (RFC 9457) with our codes, and the status of each code."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from json import JSONDecodeError
from typing import Any, Final, Self

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel, Field
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from api_stub.addresses import PREDICTIONS, address_of
from kronos_client.contract.errors import Code, JobError, code_of
from kronos_model.text import dotted

MEDIA_TYPE: Final = "application/problem+json"
TYPE_PREFIX: Final = "urn:kronos:error:"
UNAVAILABLE_RETRY_S: Final = 5
CANDLE_KINDS: Final = ("records", "columns")
"""Tags that pydantic puts into the location of an error in candles. Requests do not contain them."""
MAX_FIELD_CHARS: Final = 200
MAX_REASON_CHARS: Final = 300
MAX_LISTED: Final = 100
"""Errors in one ``detail``."""


class HttpCode(Code):
    """Codes of errors that only HTTP requests have. Jobs end with an ``ErrorCode``."""

    INVALID_JSON = "INVALID_JSON", "The body is not JSON: the message says where."
    BAD_REQUEST = "BAD_REQUEST", "The request cannot be read: the message says why."
    UNAUTHORIZED = "UNAUTHORIZED", "There is no valid key: send the header Authorization: Bearer KEY."
    HOST_NOT_ALLOWED = (
        "HOST_NOT_ALLOWED",
        "Without keys, this host is not served: use localhost, or set keys.",
    )
    FORBIDDEN = "FORBIDDEN", "The key lacks the scope in details.scope: use another key, or add the scope."
    ORIGIN_NOT_ALLOWED = "ORIGIN_NOT_ALLOWED", "Pages of this site may not call /mcp: allow the site."
    READ_ONLY = "READ_ONLY", "The service may not write in its folder: allow that, or change the files there."
    NOT_FOUND = "NOT_FOUND", "Nothing has this address, id or name: the message says which list has them."
    METHOD_NOT_ALLOWED = "METHOD_NOT_ALLOWED", "The address does not take the method: see the header Allow."
    DATASET_EXISTS = "DATASET_EXISTS", "A file has this name: choose another, or send replace=true."
    NOT_PROMOTED = "NOT_PROMOTED", "No backtest shows that the version is no worse: see details.verdict."
    REQUEST_TIMEOUT = "REQUEST_TIMEOUT", "The body came too slowly: send it again."
    BODY_TOO_LARGE = "BODY_TOO_LARGE", "The body has too many bytes: send less at once."
    UNSUPPORTED_MEDIA_TYPE = "UNSUPPORTED_MEDIA_TYPE", "The body has another form: the message says which."
    RATE_LIMITED = "RATE_LIMITED", "Too many requests: wait for as many seconds as Retry-After says."
    OVERLOADED = "OVERLOADED", "The service is busy or stopping: try again after Retry-After seconds."


_CODES: Final = {
    HTTPStatus.BAD_REQUEST: "UNSUPPORTED_VERSION BAD_MESSAGE INVALID_JSON BAD_REQUEST",
    HTTPStatus.UNAUTHORIZED: "UNAUTHORIZED",
    HTTPStatus.FORBIDDEN: "HOST_NOT_ALLOWED ORIGIN_NOT_ALLOWED FORBIDDEN READ_ONLY",
    HTTPStatus.NOT_FOUND: "LOST NOT_FOUND FEED_NOT_FOUND",
    HTTPStatus.METHOD_NOT_ALLOWED: "METHOD_NOT_ALLOWED",
    HTTPStatus.REQUEST_TIMEOUT: "REQUEST_TIMEOUT",
    HTTPStatus.CONFLICT: """
        ID_CONFLICT CANCELLED RUN_LOCKED DATASET_EXISTS NOT_PROMOTED
        FEED_CONFLICT FEED_BAR_CHANGED FEED_BUSY""",
    HTTPStatus.GONE: "RESULT_EXPIRED FEED_GONE",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "LIMIT_EXCEEDED RESULT_TOO_LARGE BODY_TOO_LARGE",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "UNSUPPORTED_MEDIA_TYPE",
    HTTPStatus.UNPROCESSABLE_ENTITY: """
        UNKNOWN_FIELD MISSING_FIELD BAD_TYPE BAD_VALUE BAD_ENCODING DUPLICATE_ID INVALID_INPUT
        PRED_LEN_TOO_LONG MISSING_COLUMN UNKNOWN_COLUMN LENGTH_MISMATCH EMPTY_SERIES NOT_FINITE
        VALUE_TOO_LARGE NON_POSITIVE_PRICE HIGH_BELOW_LOW NEGATIVE_VOLUME BAD_TIMESTAMP
        TIMESTAMPS_NOT_ASCENDING MIXED_TIMEZONES TIMEZONE_UNKNOWN TIMEZONE_MISMATCH CALENDAR_UNKNOWN
        CANNOT_INFER_TIMESTAMPS INVALID_DEVICE MODEL_NOT_ALLOWED NOT_CALIBRATED INVALID_CONFIG
        TRAINING_DATA_INVALID TRAINING_DIVERGED DATA_NOT_ALLOWED""",
    HTTPStatus.TOO_MANY_REQUESTS: "QUEUE_FULL RATE_LIMITED",
    HTTPStatus.INTERNAL_SERVER_ERROR: """
        CHECKPOINT_INVALID CHECKPOINT_MISSING CHECKPOINT_MISMATCH WORKER_LOST KEY_UNREADABLE
        INTERNAL""",
    HTTPStatus.SERVICE_UNAVAILABLE: """
        NO_GPU_WORKER MODEL_CAPACITY CHECKPOINT_UNREACHABLE NOT_INSTALLED TRAINING_STOPPED OUT_OF_MEMORY
        ENQUEUE_UNCERTAIN BROKER_UNREACHABLE REDIS_CLUSTER OVERLOADED""",
    HTTPStatus.GATEWAY_TIMEOUT: "DEADLINE TIMEOUT",
    HTTPStatus.INSUFFICIENT_STORAGE: "DISK_FULL",
}
STATUSES: Final[Mapping[str, HTTPStatus]] = {
    code: status for status, codes in _CODES.items() for code in codes.split()
}
"""The status of each code. A code that this version does not know is answered like INTERNAL."""

_CODES_OF_STATUSES: Final[Mapping[int, HttpCode]] = {STATUSES[code]: code for code in HttpCode}
"""For Starlette's own errors. Of two codes with one status, the last counts."""
_DETAILS_OF_STATUSES: Final = {
    404: "nothing is at this address; see /docs for the addresses that exist",
    405: "this address does not take that method; see the Allow header",
}


class ListedError(BaseModel):
    """An error as FastAPI lists it."""

    loc: list[str | int] = Field(examples=[["body", "candles", 3, "high"]])
    msg: str
    type: str = Field(examples=["value_error"])


class Problem(BaseModel):
    """An error as in RFC 9457, with our ``code``, ``field`` and ``details``."""

    type: str = Field(examples=[f"{TYPE_PREFIX}HIGH_BELOW_LOW"])
    title: str = Field(description="of the HTTP status", examples=["Unprocessable Entity"])
    status: int = Field(examples=[422])
    detail: str | list[ListedError] = Field(
        description="what is wrong and what to do; with status 422 below /v1/predict a list, as of FastAPI"
    )
    code: str = Field(examples=["HIGH_BELOW_LOW"])
    field: str | None = Field(default=None, description="the field at fault", examples=["candles.3.high"])
    details: dict[str, Any] = {}
    job_id: str | None = None


class HttpError(HTTPException):
    """An error that a request ends with. FastAPI lets HTTPExceptions pass while it reads a body.

    Attributes:
        place: The part of the request that has the field: body, path, query or header.
        kind: pydantic's type of the error.
    """

    def __init__(
        self,
        code: str,
        message: str,
        field: str | None = None,
        details: Mapping[str, Any] | None = None,
        *,
        job_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        place: str = "body",
        kind: str = "value_error",
    ) -> None:
        super().__init__(status_of(code), message, headers)
        self.code = code
        self.place = place
        self.kind = kind
        self.field = field
        self.details = dict(details or {})
        self.job_id = job_id

    @classmethod
    def from_job(cls, error: JobError, job_id: str | None = None) -> Self:
        """A job's error, with the job's id."""
        job_id = job_id or error.details.get("job_id")
        return cls(error.code, error.message, error.field, error.details, job_id=job_id)

    @property
    def listed(self) -> ListedError:
        """The error as FastAPI lists it."""
        parts = self.field.split(".") if self.field and self.field != self.place else []
        path = [int(part) if part.isdecimal() else part for part in parts]
        return ListedError(loc=[self.place, *path], msg=self.detail, type=self.kind)

    def response(self, others: Sequence["HttpError"] | None = None) -> Response:
        """The problem document; if ``others`` is given, its ``detail`` is a list of this error and those."""
        status = HTTPStatus(self.status_code)
        content = Problem(
            type=f"{TYPE_PREFIX}{self.code}",
            title=status.phrase,
            status=status,
            detail=self.detail if others is None else [error.listed for error in (self, *others)],
            code=self.code,
            field=self.field,
            details=self.details,
            job_id=self.job_id,
        )
        headers = dict(self.headers or {})
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            headers["Retry-After"] = str(self.details.get("retry_after_s", UNAVAILABLE_RETRY_S))
        elif status == HTTPStatus.SERVICE_UNAVAILABLE:
            headers["Retry-After"] = str(UNAVAILABLE_RETRY_S)
        if self.job_id is not None:
            headers["X-Job-Id"] = self.job_id
        return Response(to_json(content), status, headers, MEDIA_TYPE)


def closing(code: str, text: str, details: Mapping[str, Any] | None = None) -> HttpError:
    """An error that closes the connection, since the rest of the request is not read."""
    return HttpError(code, text, details=details, headers={"Connection": "close"})


def status_of(code: str) -> HTTPStatus:
    """The status of a code; 500 if this version does not know the code."""
    return STATUSES.get(code, HTTPStatus.INTERNAL_SERVER_ERROR)


async def on_job_error(request: Request, error: Exception) -> Response:
    """Answer a request that raised JobError."""
    assert isinstance(error, JobError)
    return _answer(request, HttpError.from_job(error))


async def on_http_error(request: Request, error: Exception) -> Response:
    """Answer a request that raised HTTPException: our ``HttpError``, or one of Starlette or FastAPI."""
    assert isinstance(error, HTTPException)
    if isinstance(error, HttpError):
        return _answer(request, error)
    code = _CODES_OF_STATUSES.get(error.status_code, HttpCode.BAD_REQUEST)
    message = _DETAILS_OF_STATUSES.get(error.status_code, str(error.detail))
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        # For the page's files FastAPI names none.
        headers["Allow"] = ", ".join(_methods(request)) or headers.get("Allow", "GET, HEAD")
    return HttpError(code, message, headers=headers).response()


def _methods(request: Request) -> list[str]:
    """The methods of an address over all its routes. Starlette names those of one route."""
    address = address_of(request.scope)
    described = request.app.openapi()["paths"].items()
    # An address of its own comes before one with a parameter that it may match.
    for template, operations in sorted(described, key=lambda path: "{" in path[0]):
        if compile_path(template)[0].match(address):
            found = {method.upper() for method in operations}
            is_headed = "GET" in found and not template.endswith("/events")
            return sorted(found | {"HEAD"} if is_headed else found)
    return []


async def on_validation_error(request: Request, error: Exception) -> Response:
    """Answer a request that does not match its model. The first error that pydantic found is the problem."""
    assert isinstance(error, RequestValidationError)
    return _answer(request, *(_invalid(found, error.body) for found in error.errors()[:MAX_LISTED]))


def _answer(request: Request, error: HttpError, *others: HttpError) -> Response:
    is_listed = error.status_code == HTTPStatus.UNPROCESSABLE_ENTITY and address_of(request.scope).startswith(
        PREDICTIONS
    )
    return error.response(others if is_listed else None)


def _invalid(found: Mapping[str, Any], body: Any) -> HttpError:
    """One of pydantic's errors."""
    place, *path = found["loc"]
    kind = str(found["type"])
    context = found.get("ctx", {})
    if kind == "json_invalid":
        where = JSONDecodeError(str(context.get("error", ""))[:MAX_REASON_CHARS], body, *path)
        return HttpError(HttpCode.INVALID_JSON, f"the body is not JSON: {where}")
    if "field" in context:  # a check of several fields names the one at fault
        path.append(context["field"])
    # After "candles" pydantic names the kind that it read, which the request does not contain.
    pairs = zip([None, *path], path, strict=False)
    parts = [part for before, part in pairs if before != "candles" or part not in CANDLE_KINDS]
    field = dotted(parts, MAX_FIELD_CHARS)[:MAX_FIELD_CHARS] or str(place)
    reason = str(found["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    message = f"{field}: {reason[:MAX_REASON_CHARS]}"
    return HttpError(code_of(kind), message, field, place=str(place), kind=kind)
