"""The error codes that a job can end with, the exception that carries one, and pydantic's errors as such."""

import re
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from typing import Any, Final, Self

from pydantic import BaseModel, ValidationError

from kronos_model.checkpoints.names import did_you_mean
from kronos_model.errors import KronosError
from kronos_model.text import MAX_EXCERPT_CHARS, dotted, excerpt, without_paths


class Code(StrEnum):
    """An error's code. ``meaning`` is one line: what happened, and what to do."""

    meaning: str

    def __new__(cls, value: str, meaning: str) -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member


class ErrorCode(Code):
    """The one list of codes that jobs end with."""

    # The job's form
    UNSUPPORTED_VERSION = "UNSUPPORTED_VERSION", "This worker cannot read the schema_version: update it."
    UNKNOWN_FIELD = "UNKNOWN_FIELD", "The contract has no such field: remove it or check its spelling."
    MISSING_FIELD = "MISSING_FIELD", "A required field is missing: add it."
    BAD_TYPE = "BAD_TYPE", "A value has the wrong JSON type: send the type that the contract names."
    BAD_VALUE = "BAD_VALUE", "A value is outside what the field allows: see the contract."
    BAD_ENCODING = "BAD_ENCODING", "A column is not base64 of little-endian float32: encode it again."
    DUPLICATE_ID = "DUPLICATE_ID", "Two series of one job have the same id: give each its own."
    INVALID_INPUT = "INVALID_INPUT", "The request cannot be computed: the message says why."

    # Its size
    LIMIT_EXCEEDED = "LIMIT_EXCEEDED", "More than the limits of a job or feed allow: send or keep less."
    PRED_LEN_TOO_LONG = "PRED_LEN_TOO_LONG", "The horizon exceeds the model's context: ask for fewer bars."
    RESULT_TOO_LARGE = "RESULT_TOO_LARGE", "The result would be too large: fewer paths, quantiles or series."

    # Candles
    MISSING_COLUMN = "MISSING_COLUMN", "A price column is missing: send open, high, low and close."
    UNKNOWN_COLUMN = "UNKNOWN_COLUMN", "The model has no such column: leave it out."
    LENGTH_MISMATCH = "LENGTH_MISMATCH", "Columns or timestamps differ in length: give one value a bar."
    EMPTY_SERIES = "EMPTY_SERIES", "The series has no bars: send some."
    NOT_FINITE = "NOT_FINITE", "A value is NaN or infinite: fill or drop the bar, or set missing."
    VALUE_TOO_LARGE = "VALUE_TOO_LARGE", "A value is too large to be summed in float32: use a larger unit."
    NON_POSITIVE_PRICE = "NON_POSITIVE_PRICE", "A price is zero or below: correct or drop the bar."
    HIGH_BELOW_LOW = "HIGH_BELOW_LOW", "A high is below the low of its bar: correct or drop the bar."
    NEGATIVE_VOLUME = "NEGATIVE_VOLUME", "Volume or amount is below zero: correct it or leave the column out."

    # Timestamps
    BAD_TIMESTAMP = "BAD_TIMESTAMP", "Not an ISO 8601 timestamp: write it like 2024-06-18T09:35:00+08:00."
    TIMESTAMPS_NOT_ASCENDING = "TIMESTAMPS_NOT_ASCENDING", "A time is not after the one before: sort them."
    MIXED_TIMEZONES = "MIXED_TIMEZONES", "Some timestamps have an offset and some do not: write all alike."
    TIMEZONE_UNKNOWN = "TIMEZONE_UNKNOWN", "Not an IANA time zone: use a name such as America/New_York."
    TIMEZONE_MISMATCH = "TIMEZONE_MISMATCH", "The time zone does not have this offset: correct one of them."
    CALENDAR_UNKNOWN = "CALENDAR_UNKNOWN", "No such calendar: use a code such as XNYS, 24/7 or weekdays."
    CANNOT_INFER_TIMESTAMPS = "CANNOT_INFER_TIMESTAMPS", "The lookback shows no rule: give the future times."

    NOT_INSTALLED = "NOT_INSTALLED", "A package is missing: install the extra that the message names."

    # Devices and models
    INVALID_DEVICE = "INVALID_DEVICE", "Not a device: use auto, cpu, cuda, cuda:N or mps."
    NO_GPU_WORKER = "NO_GPU_WORKER", "No GPU worker is ready, the job forbids the CPU: start one or allow it."
    MODEL_NOT_ALLOWED = "MODEL_NOT_ALLOWED", "The worker does not serve this model: name one that it serves."
    MODEL_CAPACITY = "MODEL_CAPACITY", "No room for another model at present: try later, or add workers."
    NOT_CALIBRATED = (
        "NOT_CALIBRATED",
        "The model has no calibration for this job: run `kronos calibrate`, or do not ask for it.",
    )
    CHECKPOINT_INVALID = "CHECKPOINT_INVALID", "The checkpoint cannot be used: the message says why."
    CHECKPOINT_MISSING = "CHECKPOINT_MISSING", "The checkpoint, or a file of it, is missing: check its name."
    CHECKPOINT_UNREACHABLE = "CHECKPOINT_UNREACHABLE", "Not cached, and the hub does not answer: download it."
    CHECKPOINT_MISMATCH = "CHECKPOINT_MISMATCH", "Model and tokenizer do not match: use a pair that does."

    # Finetuning
    INVALID_CONFIG = "INVALID_CONFIG", "A finetuning setting cannot be used: the message names it."
    TRAINING_DATA_INVALID = "TRAINING_DATA_INVALID", "No usable candles, or too few: the message says why."
    TRAINING_DIVERGED = "TRAINING_DIVERGED", "The loss is not finite: lower the learning rate."
    TRAINING_STOPPED = "TRAINING_STOPPED", "Training was stopped and saved: start it again to continue."
    RUN_LOCKED = "RUN_LOCKED", "Another process trains in this run's folder: wait for it, or end it."
    DATA_NOT_ALLOWED = "DATA_NOT_ALLOWED", "The path is not in a data folder: use one in KRONOS_DATA_FOLDER."
    DISK_FULL = "DISK_FULL", "Files cannot be saved: free space, allow writing, or use another folder."

    # Feeds
    FEED_NOT_FOUND = "FEED_NOT_FOUND", "No feed has this name: create it, with pred_len and other options."
    FEED_CONFLICT = "FEED_CONFLICT", "The feed has other options: use them, another name, or delete the feed."
    FEED_BAR_CHANGED = "FEED_BAR_CHANGED", "A known bar differs too far back: replace the series whole."
    FEED_GONE = "FEED_GONE", "Redis has lost this feed, or bars of it: create it, or replace that series."
    FEED_BUSY = "FEED_BUSY", "Others kept changing the same series: repeat the append."

    # The job's life
    CANCELLED = "CANCELLED", "The job was cancelled, as requested."
    DEADLINE = "DEADLINE", "The job was not done before its deadline: allow more time or add workers."
    OUT_OF_MEMORY = "OUT_OF_MEMORY", "The device has too little memory for the job: ask for fewer paths."
    QUEUE_FULL = "QUEUE_FULL", "The queue has no room: submit it again after details.retry_after_s seconds."
    ENQUEUE_UNCERTAIN = "ENQUEUE_UNCERTAIN", "Redis did not confirm the job: submit it again under its id."
    ID_CONFLICT = "ID_CONFLICT", "The id was used for a job with other content: choose a new id."
    RESULT_EXPIRED = "RESULT_EXPIRED", "The job ended, but its result is no longer kept: submit it again."
    LOST = "LOST", "Redis has lost this job, or never had it: check the id, or submit it again."
    WORKER_LOST = "WORKER_LOST", "Each process that computed the job died: report it with the job's id."
    BAD_MESSAGE = "BAD_MESSAGE", "Not a Celery message for a known task: the message says what is wrong."
    TIMEOUT = "TIMEOUT", "No result within the timeout: the message says whether the job goes on."
    BROKER_UNREACHABLE = "BROKER_UNREACHABLE", "Redis does not answer: check that it runs, and its URL."
    KEY_UNREADABLE = "KEY_UNREADABLE", "Another program wrote the Redis key in the message: delete it."
    REDIS_CLUSTER = (
        "REDIS_CLUSTER",
        "Redis runs as a cluster: use a single primary, with Sentinel if need be.",
    )
    INTERNAL = "INTERNAL", "A defect in this software: report it with the job's id."


class JobError(Exception):
    """Why a job has no result.

    ``args`` is exactly ``(code, message, field, details)``, all JSON-compatible: Celery's JSON result backend
    stores ``args`` and calls the class with them again.

    Attributes:
        code: One of ``ErrorCode``, or a code of a newer worker.
        message: What is wrong and what to do.
        field: Dotted path of the field at fault, such as ``series.0.close``.
        details: Further facts; ``row`` is the first bar at fault, counted from 0.
    """

    def __init__(
        self, code: str, message: str, field: str | None = None, details: Mapping[str, Any] | None = None
    ) -> None:
        # A plain str: a code of a newer version must survive the way back too.
        self.code, self.message, self.field, self.details = str(code), message, field, dict(details or {})
        super().__init__(self.code, self.message, self.field, self.details)

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

    @classmethod
    def from_kronos(cls, error: KronosError, *, prefix: str = "") -> "JobError":
        """The same error for the wire. ``prefix``, such as ``series.0.``, is put before its field.

        The sender of the job sees no path of the worker's machine.
        """
        field = f"{prefix}{error.field}" if error.field is not None else prefix.rstrip(".") or None
        return cls(error.code, without_paths(error.message), field, without_paths(error.details))

    def renamed(self, field: str) -> "JobError":
        """The same error with another name for its field, also in the message.

        A plain word, such as ``model``, is replaced only where the message begins with it.
        """
        begin = "^" if str(self.field).isalpha() else r"(?<![\w.])"
        name = rf"{begin}{re.escape(str(self.field))}(?!\w)"
        return JobError(self.code, re.sub(name, lambda _: field, self.message), field, self.details)


_CODES: Final = {
    "extra_forbidden": ErrorCode.UNKNOWN_FIELD,
    "missing": ErrorCode.MISSING_FIELD,
    "invalid_key": ErrorCode.BAD_TYPE,
}
"""Codes of pydantic's kinds of errors. Our own kinds have the names of codes."""
_EXPECTED: Final = {
    "bool_type": "true or false",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "string_type": "a string",
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "below {lt}",
    "less_than_equal": "at most {le}",
    "tuple_type": "an array",
    "model_type": "an object",
    "too_short": "an array of at least {min_length}",
    "too_long": "an array of at most {max_length}",
    "string_too_short": "a string of at least {min_length} characters",
    "string_too_long": "a string of at most {max_length} characters",
    "string_pattern_mismatch": "auto, cpu, cuda, cuda:N or mps",
}
"""JSON's words where pydantic's messages use Python's. The others begin with ``Input should be``."""
_ROWS: Final = (("timestamps",), ("future_timestamps",))
"""Fields that have one entry a bar."""


def code_of(kind: str) -> ErrorCode:
    """The code for a kind of pydantic's errors, or for a kind of ours."""
    code = ErrorCode.BAD_TYPE if kind.endswith(("_type", "_parsing")) else ErrorCode.BAD_VALUE
    return ErrorCode.__members__.get(kind.upper(), _CODES.get(kind, code))


def refusal(error: ValidationError, model: type[BaseModel] | None = None) -> JobError:
    """The JobError for the first problem that pydantic found in a job, by default one of forecasts."""
    first = error.errors(include_url=False)[0]
    kind, context, value = first["type"], first.get("ctx", {}), first["input"]
    # In a job only the device has a pattern.
    code = ErrorCode.INVALID_DEVICE if kind == "string_pattern_mismatch" else code_of(kind)
    field = dotted(first["loc"]) or "job"
    if code == ErrorCode.UNKNOWN_FIELD:
        text = f"{field} is not a field of the job: remove it or check its spelling"
        return JobError(code, text + _nearest_field(str(first["loc"][-1]), model), field)
    if kind == "missing":
        return JobError(code, f"{field} is missing: add it", field)
    if kind in _EXPECTED:
        short = {name: f"{one:g}" if isinstance(one, float) else one for name, one in context.items()}
        expected = _EXPECTED[kind].format(**short)
    else:
        expected = first["msg"].removeprefix("Input should be ")
    if "field" in context:  # of a check of several fields
        return JobError(code, f"{context['field']} {expected}", context["field"])
    if "index" in context:
        field, value = f"{field}.{context['index']}", value[context["index"]]
    details = {}
    if "row" in context:
        details = {"row": context["row"]}
        value = value[context["row"]]
    elif first["loc"][-2:-1] in _ROWS:
        *place, row = first["loc"]
        field, expected, details = dotted(place), f"{expected} in row {row}", {"row": row}
    return JobError(code, f"{field} must be {expected}, not {excerpt(value)}", field, details)


def _nearest_field(name: str, model: type[BaseModel] | None) -> str:
    """The end of a message about an unknown field: the job's field most like it, if any is."""
    known = _field_names(model)
    return "" if name in known else did_you_mean(name[:MAX_EXCERPT_CHARS], known)


@cache
def _field_names(model: type[BaseModel] | None) -> frozenset[str]:
    from kronos_client.contract.forecast import ForecastJob

    schema = (model or ForecastJob).model_json_schema()
    parts = (schema, *schema.get("$defs", {}).values())
    return frozenset(name for part in parts for name in part.get("properties", ()))


def first_reason(error: ValidationError) -> str:
    """The first problem in content other than a job, as ``field: message``."""
    first = error.errors(include_url=False, include_input=False)[0]
    return ": ".join(filter(None, [dotted(first["loc"]), first["msg"]]))
