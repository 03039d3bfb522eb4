"""Checks of a job's size, made before any other work on it."""

from typing import Any, Final

from kronos_client.contract.columns import num_values
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.forecast import ForecastJob
from kronos_client.contract.job_limits import Limits
from kronos_model.bars.columns import COLUMNS

MAX_FIELDS: Final = 64
"""The most fields in one JSON object; far more than any object of the contract has."""

BYTES_PER_NUMBER: Final = 20
"""A forecast's number as JSON: up to 17 digits, sign, point and comma."""
BYTES_PER_TIMESTAMP: Final = 30
BYTES_PER_SERIES: Final = 1024
"""Names of columns and quantiles, id and seed."""


def check_payload(payload: dict[Any, Any], limits: Limits) -> None:
    """Refuse an absurdly large job before its form is checked. Raises JobError LIMIT_EXCEEDED."""
    _check_num_fields(payload, "job")
    for name in ("sampling", "output"):
        _check_num_fields(payload.get(name), name)
    series = payload.get("series")
    if not isinstance(series, list):
        return
    _check_most(len(series), limits.max_series, "series", "series in a job: send several jobs")
    num_bytes = 0
    for index, one in enumerate(series):
        if not isinstance(one, dict):
            continue
        _check_num_fields(one, f"series.{index}")
        for name in ("timestamps", *COLUMNS, "future_timestamps"):
            values = one.get(name)
            field = f"series.{index}.{name}"
            if isinstance(values, str):
                num_bytes += len(values)
            elif isinstance(values, list):
                if name != "future_timestamps":  # their number is the horizon, which has its own limit
                    check_num_bars(len(values), limits, field)
                num_bytes += _num_bytes(values)
    _check_most(num_bytes, limits.max_message_bytes, "series", "bytes in a job: send several jobs")


def check_finetune_payload(payload: dict[Any, Any], limits: Limits) -> None:
    """Refuse an absurdly large finetuning job. Raises JobError LIMIT_EXCEEDED."""
    _check_num_fields(payload, "job")
    data = payload.get("data")
    if not isinstance(data, dict):
        return
    _check_num_fields(data, "data")
    field = "data.instruments"
    instruments = data.get("instruments")
    if not isinstance(instruments, list):
        return
    hint = "put them into files in the worker's data folder, and name those in data.path"
    # Each instrument has at least one bar, so too many are refused without reading each.
    _check_most(len(instruments), limits.max_inline_bars, field, f"bars that a job carries: {hint}")
    num_bars = num_bytes = 0
    for index, one in enumerate(instruments):
        if not isinstance(one, dict):
            continue
        _check_num_fields(one, f"{field}.{index}")
        columns = [one.get(name) for name in ("timestamps", *COLUMNS)]
        num_bars += max(
            1, *(num_values(column) if isinstance(column, list | str) else 0 for column in columns)
        )
        num_bytes += sum(
            len(column) if isinstance(column, str) else _num_bytes(column)
            for column in columns
            if isinstance(column, list | str)
        )
    _check_most(num_bars, limits.max_inline_bars, field, f"bars that a job carries: {hint}")
    _check_most(num_bytes, limits.max_message_bytes, field, f"bytes in a job: {hint}")


def _num_bytes(values: list[Any]) -> int:
    """The minimum size of these values as JSON, with a comma after each."""
    if set(map(type, values)) == {str}:  # the usual case, and several times faster
        return sum(map(len, values)) + 3 * len(values)
    return sum(len(value) + 3 if isinstance(value, str) else 2 for value in values)


def _check_num_fields(part: object, field: str) -> None:
    if isinstance(part, dict):  # each unknown field would cost an error report of its own
        _check_most(len(part), MAX_FIELDS, field, "fields in an object: see the contract")


def check_job(job: ForecastJob, limits: Limits) -> None:
    """Refuse a job that asks for too much.

    Raises:
        JobError: LIMIT_EXCEEDED, PRED_LEN_TOO_LONG, RESULT_TOO_LARGE.
    """
    samples = job.sampling.sample_count
    _check_most(samples, limits.max_sample_count, "sampling.sample_count", "sample paths a series")
    _check_most(
        samples * len(job.series),
        limits.max_paths,
        "sampling.sample_count",
        "sample paths in a job, over all its series: send several jobs",
    )
    _check_most(
        job.horizon,
        limits.max_pred_len,
        "pred_len",
        "bars ahead, the most that the model can see: ask for fewer",
        ErrorCode.PRED_LEN_TOO_LONG,
    )
    _check_most(
        result_bytes(job),
        limits.max_result_bytes,
        "output",
        "bytes in a result, as estimated: ask for fewer series, quantiles, bars or no paths",
        ErrorCode.RESULT_TOO_LARGE,
    )


def result_bytes(job: ForecastJob) -> int:
    """An upper estimate of the result's size as JSON."""
    tables = 1 + len(job.output.quantiles) + (job.sampling.sample_count if job.output.paths else 0)
    per_bar = BYTES_PER_TIMESTAMP + tables * len(COLUMNS) * BYTES_PER_NUMBER
    return len(job.series) * (BYTES_PER_SERIES + job.horizon * per_bar)


def check_num_bars(num_bars: int, limits: Limits, field: str) -> None:
    """Refuse a column or series that is too long. Raises JobError LIMIT_EXCEEDED."""
    _check_most(num_bars, limits.max_bars, field, "bars in a series: send the newest ones")


def _check_most(
    actual: int, limit: int, field: str, what: str, code: ErrorCode = ErrorCode.LIMIT_EXCEEDED
) -> None:
    if actual > limit:
        raise JobError(
            code,
            f"{field}: {actual} is more than the worker's limit of {limit} {what}",
            field,
            {"limit": limit, "actual": actual},
        )
