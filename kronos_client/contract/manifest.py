"""Manifest: what a forecast was computed from, so that it can be computed again and compared."""

from hashlib import blake2b
from typing import Any, Final

from pydantic import Field

from kronos_client.contract.forecast import ForecastJob, Seed, SeriesInput
from kronos_client.contract.model_info import EngineKind, ModelInfo, ResultModel
from kronos_model.bars.columns import FloatArray
from kronos_model.bars.timestamps import Timestamps

HASH_BYTES: Final = 12
NOT_OPTIONS: Final[dict[str, Any]] = {
    **dict.fromkeys(("schema_version", "series", "submitted_at"), True),
    **dict.fromkeys(("device", "allow_fallback", "deadline_s", "priority"), True),
    "sampling": {"seed"},
    "output": {"stream", "scoring"},
}
"""Parts of a job that change no number, or have a place of their own."""
OF_A_SERIES: Final = {"future_timestamps", "calendar", "timezone"}


class BarsInfo(ResultModel):
    """The bars of a series, after ``missing`` was applied."""

    hash: str = Field(description="BLAKE2b, 12 bytes, of times and values")
    num_bars: int
    first: str = Field(description="time of the first one, as written")
    last: str

    @classmethod
    def of(cls, times: Timestamps, bars: FloatArray) -> "BarsInfo":
        """Of bars (T, 6) at T times."""
        parts = [times.wall.astype("<i8"), bars.astype("<f4")]
        if times.offsets_s is not None:
            parts.append(times.offsets_s.astype("<i8"))
        hashed = blake2b(b"".join(part.tobytes() for part in parts), digest_size=HASH_BYTES).hexdigest()
        return cls(hash=hashed, num_bars=len(times), first=times.texts[0], last=times.texts[-1])


class Manifest(ResultModel):
    """What a series' forecast was computed from, and a hash of it: ``kronos replay`` computes it again."""

    series: str = Field(description="its id")
    bars: BarsInfo
    options: dict[str, Any] = Field(description="those of the job and the series that are not the default")
    seed: Seed
    model: ModelInfo
    engine: EngineKind | None
    device: str
    version: str = Field(description="of the service")
    feed: str | None = Field(default=None, description="the feed that it belongs to")
    widened_by: tuple[tuple[float, ...], ...] | None = Field(
        default=None,
        description="factors of an adaptive calibration for the intervals of 95, 80 and 50 %, by bars ahead; "
        "the hash is of numbers without them",
    )
    forecast: str = Field(description="BLAKE2b, 12 bytes, of mean, quantiles, paths, chances and statistics")

    @classmethod
    def of(
        cls, job: ForecastJob, given: SeriesInput, bars: BarsInfo, forecast: ResultModel, **facts: Any
    ) -> "Manifest":
        """The manifest of a series' ``forecast``; ``facts`` are seed, model, engine, device and version."""
        options = job.model_dump(mode="json", exclude=NOT_OPTIONS, exclude_defaults=True)
        options |= given.model_dump(mode="json", include=OF_A_SERIES, exclude_defaults=True)
        numbers = forecast.model_dump_json(include={"mean", "quantiles", "paths", "events", "statistics"})
        hashed = blake2b(numbers.encode(), digest_size=HASH_BYTES).hexdigest()
        return cls(series=given.id, bars=bars, options=options, forecast=hashed, **facts)
