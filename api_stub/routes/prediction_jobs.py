"""Turns prediction requests into jobs, and their results and errors into answers."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic_core import to_json, to_jsonable_python

from api_stub.routes.predictions import (
    Prediction,
    PredictionPoint,
    SingleRequest,
    as_columns,
    num_candles,
    version_of,
)
from api_stub.settings import ApiSettings
from kronos_client.contract.errors import JobError
from kronos_client.contract.forecast import ForecastJob, Output, Sampling
from kronos_client.contract.jobs import result_bytes
from kronos_client.contract.results import ForecastResult, SeriesForecast
from kronos_client.core.job import Job, forecast_job
from kronos_model.bars.columns import COLUMNS

BYTES_PER_BAR: Final = 192
"""Most bytes of a bar in a job's JSON: six numbers and a timestamp."""

_SERIES_FIELD: Final = re.compile(r"series\.(\d+)(?:\.(\w+))?")
_NAMES: Final = {"id": "series_id", "future_timestamps": "prediction_timestamps", "seed": "overrides.seed"}
"""Fields of a series that have another name in requests."""
_OUTPUT: Final = {*SingleRequest.model_fields} & {*Output.model_fields}
_OF_SERIES: Final = {*Prediction.model_fields} & {*SeriesForecast.model_fields} - {"quantiles", "warnings"}
_FUTURE: Final = re.compile(r"(?<![\w.])future_timestamps\b")


@dataclass(frozen=True)
class PredictionJob:
    """The items of a request that become one job.

    Attributes:
        indices: Positions of the items in the request.
        prefix: Start of the name of an item's field, with ``{index}`` for its position.
    """

    id: str
    items: Sequence[SingleRequest]
    indices: list[int]
    prefix: str

    @property
    def payload(self) -> dict[str, Any]:
        """The job in the contract's format."""
        names = _names(self.items)
        series = [_series(item, name) for item, name in zip(self.items, names, strict=True)]
        return {"series": series} | _options(self.items[0])

    def checked(self, settings: ApiSettings) -> Job:
        """The checked job, ready to be sent. Raises JobError."""
        try:
            return forecast_job(self.payload, self.id, settings)
        except JobError as error:
            raise self.in_request(error) from None

    def predictions(self, result: ForecastResult) -> list[Prediction]:
        """The answers for the items."""
        return [
            _prediction(item, series, result) for item, series in zip(self.items, result.series, strict=True)
        ]

    def named_series(self, result: ForecastResult) -> list[SeriesForecast]:
        """The forecasts of the items under their names; those without a name have their positions."""
        return [
            series.model_copy(update={"id": str(index) if item.series_id is None else item.series_id})
            for item, index, series in zip(self.items, self.indices, result.series, strict=True)
        ]

    def in_request(self, error: JobError) -> JobError:
        """The error with the request's name of the field, also in its message."""
        if error.field is None:
            return error
        renamed = error.renamed(self._field(error.field, error.details.get("row")))
        message = _FUTURE.sub("prediction_timestamps", renamed.message)
        return JobError(renamed.code, message, renamed.field, renamed.details)

    def _field(self, field: str, row: object) -> str:
        place = 0
        if match := _SERIES_FIELD.match(field):
            place = min(int(match[1]), len(self.items) - 1)
            name = match[2] or ""
            inner = _NAMES.get(name, name)
            if name in COLUMNS:
                is_record = isinstance(self.items[place].candles, list)
                inner = f"candles.{row}.{name}" if is_record and isinstance(row, int) else f"candles.{name}"
        elif field == "output":  # the whole result is too large
            first = self.items[0]
            inner = "paths" if first.paths else "quantiles" if first.quantiles else "prediction_timestamps"
        elif field == "pred_len" or field.startswith("sampling."):
            inner = f"overrides.{field.removeprefix('sampling.')}"
        else:
            inner = field.removeprefix("output.")
        return (self.prefix.format(index=self.indices[place]) + inner).rstrip(".") or "candles"


def prediction_jobs(
    items: Sequence[SingleRequest], request_id: str, prefix: str, settings: ApiSettings
) -> list[PredictionJob]:
    """Group the items into as few jobs as the limits allow. The items of a job have the same options.

    The id of a single job is the request's. Several add their numbers to it.
    """
    groups: dict[bytes, list[int]] = {}
    for index, item in enumerate(items):
        groups.setdefault(to_json(_options(item)), []).append(index)
    parts = [part for indices in groups.values() for part in _parts(indices, items, settings)]
    return [
        PredictionJob(
            request_id if len(parts) == 1 else f"{request_id}.{number}",
            [items[index] for index in part],
            part,
            prefix,
        )
        for number, part in enumerate(parts)
    ]


def _options(item: SingleRequest) -> dict[str, Any]:
    """What all series of a job share, in the contract's format."""
    options: dict[str, Any] = {
        "pred_len": item.pred_len,
        "sampling": item.drawing.sampling(),
        "output": {"quantiles": []} | item.model_dump(include=_OUTPUT, exclude_none=True),
        "device": item.device,
        "allow_fallback": item.allow_fallback,
        "priority": item.priority,
        "missing": item.missing,
    }
    return options if item.model is None else options | {"model": item.model}


def _parts(indices: Sequence[int], items: Sequence[SingleRequest], settings: ApiSettings) -> list[list[int]]:
    """Split items to keep the limits on a job's series, paths, size and result."""
    first, limits = items[indices[0]], settings.limits()
    num_samples = max(1, first.drawing.sample_count or 1)
    max_series = min(
        limits.max_series,
        limits.max_paths // num_samples,
        limits.max_result_bytes // _result_bytes(first, num_samples),
    )
    max_bars = limits.max_message_bytes // BYTES_PER_BAR
    parts: list[list[int]] = []
    num_bars = 0
    for index in indices:
        size = num_candles(items[index].candles) + len(items[index].prediction_timestamps)
        if not parts or len(parts[-1]) >= max_series or num_bars + size > max_bars:
            parts.append([])
            num_bars = 0
        parts[-1].append(index)
        num_bars += size
    return parts


def _result_bytes(item: SingleRequest, num_samples: int) -> int:
    """The contract's estimate for one series."""
    job = ForecastJob.model_construct(
        series=(None,),
        pred_len=item.pred_len,
        sampling=Sampling.model_construct(sample_count=num_samples),
        output=Output.model_construct(**_options(item)["output"]),
    )
    return result_bytes(job)


def _names(items: Sequence[SingleRequest]) -> list[str]:
    """Ids of the series: the given ones if they are valid and distinct, else their positions."""
    given = [item.series_id or "" for item in items]
    is_valid = len(set(given)) == len(given) and all(name and name.isprintable() for name in given)
    return given if is_valid else [str(place) for place in range(len(items))]


def _series(item: SingleRequest, name: str) -> dict[str, Any]:
    series = {
        "id": name,
        "timestamps": to_jsonable_python(item.timestamps),
        **as_columns(item.candles),
        "future_timestamps": to_jsonable_python(item.prediction_timestamps[: item.pred_len]),
        "timezone": item.timezone,
        "seed": item.drawing.seed,
    }
    return {field: value for field, value in series.items() if value is not None}


def _prediction(item: SingleRequest, series: SeriesForecast, result: ForecastResult) -> Prediction:
    columns = [series.mean[name] for name in COLUMNS]
    return Prediction(
        series_id=item.series_id,
        prediction=[
            PredictionPoint.model_construct(timestamp=timestamp, **dict(zip(COLUMNS, values, strict=True)))
            for timestamp, *values in zip(series.timestamps, *columns, strict=True)
        ],
        model_version=version_of(result.model.id, result.model.revision),
        tokenizer_version=version_of(result.model.tokenizer_id, result.model.tokenizer_revision),
        quantiles=series.quantiles if item.quantiles else None,  # type: ignore[arg-type]
        warnings=[*result.warnings, *series.warnings],
        **{name: getattr(series, name) for name in _OF_SERIES},
        **{name: getattr(result, name) for name in ("device", "device_warning", "engine")},
    )
