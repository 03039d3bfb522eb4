"""Turns prediction requests into jobs, and their results and errors into answers."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from api_stub.candles import CandleColumns, as_columns, as_texts, num_candles
from api_stub.routes.predictions import MAX_NAME_CHARS, Prediction, PredictionPoint, SingleRequest
from api_stub.settings import ApiSettings
from kronos_client.contract.errors import JobError
from kronos_client.contract.forecast import ForecastJob, Output, Sampling
from kronos_client.contract.limits import result_bytes
from kronos_client.contract.results import ForecastResult, SeriesForecast
from kronos_client.core.job import Job, forecast_job
from kronos_model.bars.columns import COLUMNS

BYTES_PER_BAR: Final = 192
"""Most bytes of a bar in a job's JSON: six numbers and a timestamp."""

_SERIES_FIELD: Final = re.compile(r"series\.(\d+)(?:\.(\w+))?")
_NAMES: Final = {"id": "series_id", "future_timestamps": "prediction_timestamps", "seed": "overrides.seed"}
"""Fields of a series that have another name in requests."""
_FUTURE: Final = re.compile(r"(?<![\w.])future_timestamps\b")


@dataclass(frozen=True)
class PredictionJob:
    """The items of a request that become one job.

    Attributes:
        indices: Positions of the items in the request.
        prefix: Start of the name of an item's field, with ``{index}`` for its position.
    """

    items: Sequence[SingleRequest]
    indices: list[int]
    prefix: str

    @property
    def payload(self) -> dict[str, Any]:
        """The job in the contract's format."""
        first = self.items[0]
        payload: dict[str, Any] = {
            "series": [
                _series(item, name) for item, name in zip(self.items, _names(self.items), strict=True)
            ],
            "pred_len": first.pred_len,
            "sampling": {} if first.overrides is None else first.overrides.sampling(),
            "output": {"quantiles": first.quantiles or [], "paths": first.paths},
            "device": first.device,
            "allow_fallback": first.allow_fallback,
            "priority": first.priority,
        }
        return payload if first.model is None else payload | {"model": first.model}

    def checked(self, job_id: str, settings: ApiSettings) -> Job:
        """The checked job, ready to be sent. Raises JobError."""
        try:
            return forecast_job(self.payload, job_id, settings)
        except JobError as error:
            raise self.in_request(error) from None

    def predictions(self, result: ForecastResult) -> list[Prediction]:
        """The answers for the items."""
        return [_prediction(item, one, result) for item, one in zip(self.items, result.series, strict=True)]

    def in_request(self, error: JobError) -> JobError:
        """The error with the request's name of the field, also in its message."""
        if error.field is None:
            return error
        field = self._field(error.field, error.details.get("row"))
        message = _renamed(error.message, error.field, field)
        return JobError(error.code, _FUTURE.sub("prediction_timestamps", message), field, error.details)

    def _field(self, field: str, row: object) -> str:
        if match := _SERIES_FIELD.match(field):
            place = min(int(match[1]), len(self.items) - 1)
            name = match[2]
            if name is None:
                return self._at(place, "").rstrip(".") or "candles"
            if name in COLUMNS:
                is_record = not isinstance(self.items[place].candles, CandleColumns)
                inner = f"candles.{row}.{name}" if is_record and isinstance(row, int) else f"candles.{name}"
                return self._at(place, inner)
            return self._at(place, _NAMES.get(name, name))
        if field == "pred_len" or field.startswith("sampling."):
            return self._at(0, f"overrides.{field.removeprefix('sampling.')}")
        if field == "output":  # the whole result is too large
            first = self.items[0]
            return self._at(
                0, "paths" if first.paths else "quantiles" if first.quantiles else _NAMES["future_timestamps"]
            )
        return self._at(0, field.removeprefix("output."))

    def _at(self, place: int, inner: str) -> str:
        return self.prefix.format(index=self.indices[place]) + inner


def _renamed(message: str, name: str, other: str) -> str:
    """Replace a field's name in a message. A plain word, such as model, counts only at the beginning."""
    begin = "^" if name.isalpha() else r"(?<![\w.])"
    return re.sub(rf"{begin}{re.escape(name)}(?!\w)", lambda _: other, message)


def prediction_jobs(
    items: Sequence[SingleRequest], settings: ApiSettings, prefix: str
) -> list[PredictionJob]:
    """Group the items into as few jobs as the limits allow. The items of a job have the same options."""
    groups: dict[Any, list[int]] = {}
    jobs: list[PredictionJob] = []
    for index, item in enumerate(items):
        groups.setdefault(_kind(item), []).append(index)
    for indices in groups.values():
        for part in _parts(indices, items, settings):
            jobs.append(PredictionJob([items[index] for index in part], part, prefix))
    return jobs


def _kind(item: SingleRequest) -> tuple[Any, ...]:
    """The options that all series of a job share."""
    sampling = {} if item.overrides is None else item.overrides.sampling()
    return (
        item.pred_len,
        tuple(sorted(sampling.items())),
        tuple(item.quantiles or ()),
        item.paths,
        item.model,
        item.device,
        item.allow_fallback,
        item.priority,
    )


def _parts(indices: Sequence[int], items: Sequence[SingleRequest], settings: ApiSettings) -> list[list[int]]:
    """Split items to keep the limits on a job's series, paths, size and result."""
    first = items[indices[0]]
    num_samples = max(1, (first.overrides.sample_count if first.overrides else None) or 1)
    max_series = max(
        1,
        min(
            settings.max_series,
            settings.max_paths // num_samples,
            settings.max_result_bytes // _result_bytes(first, num_samples),
        ),
    )
    max_bars = settings.max_message_bytes // BYTES_PER_BAR
    parts: list[list[int]] = []
    num_bars = 0
    for index in indices:
        size = num_candles(items[index].candles) + len(items[index].prediction_timestamps)
        if not parts or len(parts[-1]) == max_series or num_bars + size > max_bars:
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
        output=Output.model_construct(quantiles=tuple(item.quantiles or ()), paths=item.paths),
    )
    return result_bytes(job)


def _names(items: Sequence[SingleRequest]) -> list[str]:
    """Ids of the series: the given ones if they are valid and distinct, else their positions."""
    given = [item.series_id or "" for item in items]
    if len(set(given)) == len(given) and all(
        1 <= len(name) <= MAX_NAME_CHARS and name.isprintable() for name in given
    ):
        return given
    return [str(place) for place in range(len(items))]


def _series(item: SingleRequest, name: str) -> dict[str, Any]:
    series: dict[str, Any] = {
        "id": name,
        "timestamps": as_texts(item.timestamps),
        **as_columns(item.candles),
        "future_timestamps": as_texts(item.prediction_timestamps[: item.pred_len]),
    }
    if item.timezone is not None:
        series["timezone"] = item.timezone
    if item.overrides is not None and item.overrides.seed is not None:
        series["seed"] = item.overrides.seed
    return series


def _prediction(item: SingleRequest, series: SeriesForecast, result: ForecastResult) -> Prediction:
    columns = [series.mean[name] for name in COLUMNS]
    return Prediction(
        series_id=item.series_id,
        prediction=[
            PredictionPoint.model_construct(timestamp=timestamp, **dict(zip(COLUMNS, values, strict=True)))
            for timestamp, *values in zip(series.timestamps, *columns, strict=True)
        ],
        model_version=_version(result.model.id, result.model.revision),
        tokenizer_version=_version(result.model.tokenizer_id, result.model.tokenizer_revision),
        quantiles=series.quantiles if item.quantiles else None,  # type: ignore[arg-type]
        paths=series.paths,  # type: ignore[arg-type]
        seed=series.seed,
        device=result.device,
        device_warning=result.device_warning,
        warnings=list(result.warnings),
    )


def _version(name: str, revision: str | None) -> str:
    return name if revision is None else f"{name}@{revision}"
