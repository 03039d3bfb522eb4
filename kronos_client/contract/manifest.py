"""Manifest: what a forecast was computed from, so that it can be computed again and compared."""

from hashlib import blake2b
from typing import Any, Final, Self

from pydantic import Field

from kronos_client.contract.compressed import compressed, decompressed
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
NOT_NUMBERS: Final = {
    *("id", "timestamps", "timestamps_from", "timezone", "seed"),
    *("lookback", "warnings", "scoring", "manifest"),
}
HASHED_ALWAYS: Final = {"paths", "events", "statistics"}
"""Hashed also if nobody asked for them, as in the first manifests."""


def hash_of(content: bytes | str) -> str:
    """BLAKE2b, 12 bytes, in hexadecimal."""
    content = content.encode() if isinstance(content, str) else content
    return blake2b(content, digest_size=HASH_BYTES).hexdigest()


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
        hashed = hash_of(b"".join(part.tobytes() for part in parts))
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
    calibration: str | None = Field(
        default=None,
        description="BLAKE2b, 12 bytes, of the model's calibration, if it corrected the quantiles",
    )
    widened_by: tuple[tuple[float, ...], ...] | None = Field(
        default=None,
        description="factors of an adaptive calibration for the intervals of 95, 80 and 50 %, by bars ahead",
    )
    forecast: str = Field(description="BLAKE2b, 12 bytes, of mean, quantiles, paths, chances and statistics")

    @classmethod
    def of(
        cls, job: ForecastJob, given: SeriesInput, bars: BarsInfo, forecast: ResultModel, **facts: Any
    ) -> "Manifest":
        """The manifest of a series' ``forecast``; ``facts`` are its other fields."""
        options = job.model_dump(mode="json", exclude=NOT_OPTIONS, exclude_defaults=True)
        options |= given.model_dump(mode="json", include=OF_A_SERIES, exclude_defaults=True)
        return cls(series=given.id, bars=bars, options=options, forecast="", **facts).with_hash(forecast)

    def to_bytes(self) -> bytes:
        """As Redis keeps it."""
        return compressed(self.model_dump_json(exclude_defaults=True))

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """The reverse of ``to_bytes``."""
        return cls.model_validate_json(decompressed(content)[0])

    def with_hash(self, forecast: ResultModel, **changes: Any) -> Self:
        """With the hash of this ``forecast``."""
        fields = type(forecast).model_fields
        absent = {name for name, value in forecast if value == fields[name].default} - HASHED_ALWAYS
        hashed = hash_of(forecast.model_dump_json(exclude=NOT_NUMBERS | absent))
        return self.model_copy(update={**changes, "forecast": hashed})
