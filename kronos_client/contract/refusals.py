"""Turns pydantic's errors into one JobError with a remedy. Input is quoted in short only."""

from typing import Final

from pydantic import ValidationError

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_model.text import dotted, excerpt

_CODES: Final = {
    "extra_forbidden": ErrorCode.UNKNOWN_FIELD,
    "missing": ErrorCode.MISSING_FIELD,
    "no_horizon": ErrorCode.MISSING_FIELD,
    "invalid_key": ErrorCode.BAD_TYPE,
    "duplicate_id": ErrorCode.DUPLICATE_ID,
    "no_data": ErrorCode.MISSING_FIELD,
    "path_outside": ErrorCode.DATA_NOT_ALLOWED,
    "string_pattern_mismatch": ErrorCode.INVALID_DEVICE,
    "future_length": ErrorCode.LENGTH_MISMATCH,
}
_EXPECTED: Final = {
    "string_type": "a string",
    "int_type": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "an array",
    "model_type": "an object",
    "string_unicode": "a string of valid Unicode",
    "finite_number": "a finite number",
    "too_short": "an array of at least {min_length}",
    "too_long": "an array of at most {max_length}",
    "string_too_short": "a string of at least {min_length} characters",
    "string_too_long": "a string of at most {max_length} characters",
    "string_pattern_mismatch": "auto, cpu, cuda, cuda:N or mps",  # only the device has a pattern
    "greater_than": "above {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "below {lt:g}",
    "less_than_equal": "at most {le}",
}
_FIELDS_OF_CHECKS: Final = {
    "duplicate_id": "{place}.{index}.id",
    "future_length": "series.{index}.future_timestamps",
    "late_event": "output.events.{index}",
    "no_horizon": "pred_len",
    "no_data": "data",
    "two_kinds_of_data": "data",
}


_ROWS: Final = (("timestamps",), ("future_timestamps",))
"""Fields that have one entry a bar."""


def refusal(error: ValidationError) -> JobError:
    """The JobError for the first problem that pydantic found."""
    first = error.errors(include_url=False)[0]
    kind, context, value = first["type"], first.get("ctx", {}), first["input"]
    code = _CODES.get(kind, ErrorCode.BAD_TYPE if kind.endswith("_type") else ErrorCode.BAD_VALUE)
    field = dotted(first["loc"]) or "job"
    if code == ErrorCode.UNKNOWN_FIELD:
        return JobError(code, f"{field} is not a field of the job: remove it or check its spelling", field)
    if kind == "missing":
        return JobError(code, f"{field} is missing: add it", field)
    if kind in _EXPECTED:
        expected = _EXPECTED[kind].format(**context)
    else:
        expected = first["msg"].removeprefix("Input should be ")
    if kind in _FIELDS_OF_CHECKS:
        field = _FIELDS_OF_CHECKS[kind].format(**context)
        return JobError(code, f"{field} {expected}", field)
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


def first_reason(error: ValidationError) -> str:
    """The first problem in content other than a job, as ``field: message``."""
    first = error.errors(include_url=False, include_input=False)[0]
    return ": ".join(filter(None, [dotted(first["loc"]), first["msg"]]))
