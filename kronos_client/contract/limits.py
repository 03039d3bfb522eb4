"""Checks of a job's size, made before any other work on it."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from kronos_client.contract.columns import num_values
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.forecast import ForecastJob
from kronos_client.contract.job_limits import Limits
from kronos_model.bars.columns import COLUMNS
from kronos_model.text import MAX_INTEGER

MAX_FIELDS: Final = 64
"""The most fields in one JSON object; far more than any object of the contract has."""

MAX_STREAM_BYTES: Final = 2 * 2**20
"""Bars of a job that are published early, up to once a second."""
BYTES_PER_NUMBER: Final = 20
"""A forecast's number as JSON: up to 17 digits, sign, point and comma."""
BYTES_PER_TIMESTAMP: Final = 30
BYTES_PER_SERIES: Final = 1024
"""Names of columns and quantiles, id and seed."""
BYTES_PER_EVENT: Final = 400
"""Its text, and the chance with its error, bounds and numbers of paths."""
STATISTICS: Final = 3


def check_payload(payload: dict[Any, Any], limits: Limits) -> None:
    """Refuse an absurdly large job before its form is checked. Raises JobError LIMIT_EXCEEDED."""
    _check_num_fields(payload, "job")
    for name in ("sampling", "output"):
        _check_num_fields(payload.get(name), name)
    series = payload.get("series")
    if not isinstance(series, list):
        return
    check_most(len(series), limits.max_series, "series", "series in a job: send several jobs")
    num_bytes = 0
    for place, columns in _columns(series, "series"):
        for name, values in columns.items():
            if name != "future_timestamps" and isinstance(values, list):  # the horizon has its own limit
                check_max_bars(len(values), limits, f"{place}.{name}")
            num_bytes += _num_bytes(values)
    check_most(num_bytes, limits.max_message_bytes, "series", "bytes in a job: send several jobs")


def check_data_payload(payload: dict[Any, Any], limits: Limits) -> None:
    """Refuse an absurdly large job that carries or names candles. Raises JobError LIMIT_EXCEEDED."""
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
    check_most(len(instruments), limits.max_inline_bars, field, f"bars that a job carries: {hint}")
    num_bars = num_bytes = 0
    for _, columns in _columns(instruments, field):
        num_bars += max([1, *map(num_values, columns.values())])
        num_bytes += sum(map(_num_bytes, columns.values()))
    check_most(num_bars, limits.max_inline_bars, field, f"bars that a job carries: {hint}")
    check_most(num_bytes, limits.max_message_bytes, field, f"bytes in a job: {hint}")


def _columns(candles: list[Any], field: str) -> Iterator[tuple[str, dict[str, list[Any] | str]]]:
    """Each object's place, and its columns and timestamps, as far as they have the right type."""
    for index, one in enumerate(candles):
        if isinstance(one, dict):
            place, columns = f"{field}.{index}", {}
            _check_num_fields(one, place)
            for name in ("timestamps", *COLUMNS, "future_timestamps"):
                if isinstance(values := one.get(name), list | str):
                    columns[name] = values
            yield place, columns


def _num_bytes(values: list[Any] | str) -> int:
    """The minimum size of these values as JSON, with a comma after each."""
    if isinstance(values, str):
        return len(values)
    with suppress(TypeError):  # the usual case, all texts, and ten times faster
        return len("".join(values)) + 3 * len(values)
    return sum(len(value) + 3 if isinstance(value, str) else 2 for value in values)


def _check_num_fields(part: object, field: str) -> None:
    if isinstance(part, dict):  # each unknown field would cost an error report of its own
        check_most(len(part), MAX_FIELDS, field, "fields in an object: see the contract")


def check_job(job: ForecastJob, limits: Limits) -> None:
    """Refuse a job that asks for too much.

    Raises:
        JobError: LIMIT_EXCEEDED, PRED_LEN_TOO_LONG, RESULT_TOO_LARGE.
    """
    field, samples = "sampling.sample_count", job.sampling.sample_count
    check_most(samples, limits.max_sample_count, field, "sample paths a series")
    text = "sample paths in a job, over all its series: send several jobs"
    check_most(samples * len(job.series), limits.max_paths, field, text)
    text = "bars ahead, the most that the model can see: ask for fewer"
    check_most(job.horizon, limits.max_pred_len, "pred_len", text, ErrorCode.PRED_LEN_TOO_LONG)
    text = "bytes in a result, as estimated: ask for fewer series, quantiles, bars or no paths"
    check_most(result_bytes(job), limits.max_result_bytes, "output", text, ErrorCode.RESULT_TOO_LARGE)
    if job.output.stream:
        text = "bytes sent at once, as estimated: ask for fewer series, quantiles or bars, or without it"
        num_bytes = result_bytes(job, with_paths=False)
        check_most(num_bytes, MAX_STREAM_BYTES, "output.stream", text, ErrorCode.RESULT_TOO_LARGE)


def result_bytes(job: ForecastJob, *, with_paths: bool = True) -> int:
    """An upper estimate of the result's size as JSON."""
    num_paths = job.sampling.sample_count if with_paths and job.output.paths else 0
    tables = 1 + len(job.output.quantiles) + num_paths
    per_bar = BYTES_PER_TIMESTAMP + tables * len(COLUMNS) * BYTES_PER_NUMBER
    answers = BYTES_PER_EVENT * len(job.output.events)
    if job.output.statistics:
        answers += STATISTICS * (BYTES_PER_EVENT + 2 * BYTES_PER_NUMBER * len(job.output.quantiles))
    return len(job.series) * (BYTES_PER_SERIES + answers + job.horizon * per_bar)


def check_max_bars(num_bars: int, limits: Limits, field: str) -> None:
    """Refuse a column or series that is too long. Raises JobError LIMIT_EXCEEDED."""
    check_most(num_bars, limits.max_bars, field, "bars in a series: send the newest ones")


def check_most(
    actual: int, limit: int, field: str, what: str, code: ErrorCode = ErrorCode.LIMIT_EXCEEDED
) -> None:
    """Refuse more of ``what`` than the limit."""
    if actual > limit:
        shown = min(actual, MAX_INTEGER)
        message = f"{field}: {shown} is more than the worker's limit of {limit} {what}"
        raise JobError(code, message, field, {"limit": limit, "actual": shown})
