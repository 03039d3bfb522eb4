"""Bars of one series: compared, cut and joined by time, and written as blocks."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronos_client.contract.columns import decode_column, encode_column, shortest
from kronos_model.bars.columns import COLUMNS
from kronos_model.bars.missing import is_missing
from kronos_model.bars.timestamps import Timestamps, parse_timestamps, write_like


@lru_cache(maxsize=64)
def _written(like: str, wall: bytes, offsets_s: bytes | None) -> tuple[str, ...]:
    """Times of rows, written like one of them. Series of a universe mostly share all their times."""
    offsets = None if offsets_s is None else np.frombuffer(offsets_s, "<i4").astype(np.int64)
    return write_like(like, np.frombuffer(wall, "<i8").astype("datetime64[us]"), offsets)


@dataclass(frozen=True)
class Form:
    """What all bars of a series share.

    Attributes:
        columns: Those that the series has, in the order of ``COLUMNS``.
        is_aware: Whether its times have offsets.
        like: A time as it was first written; others are written like it.
    """

    columns: tuple[str, ...]
    is_aware: bool
    like: str

    @property
    def dtype(self) -> np.dtype[Any]:
        """One bar in a block: wall clock in µs since 1970, seconds east of UTC, values. Little-endian."""
        times = [("wall", "<i8"), *([("offset_s", "<i4")] if self.is_aware else [])]
        return np.dtype([*times, ("values", "<f4", (len(self.columns),))])


@dataclass(frozen=True, eq=False)
class Bars:
    """``rows``, (T,) of the form's dtype, in the order of time."""

    form: Form
    rows: NDArray[np.void]

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any]) -> "Bars":
        """Those of a series as the contract has it. Raises TimestampError."""
        times = parse_timestamps(payload["timestamps"])
        columns = tuple(name for name in COLUMNS if name in payload)
        form = Form(columns, times.is_aware, times.texts[0])
        rows = np.empty(len(times), form.dtype)
        rows["wall"] = times.wall.astype(np.int64)
        if times.offsets_s is not None:
            rows["offset_s"] = times.offsets_s
        rows["values"] = np.stack([decode_column(payload[name]) for name in columns], axis=-1)
        return cls(form, rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, part: slice | NDArray[Any]) -> "Bars":
        return replace(self, rows=self.rows[part])

    def __add__(self, other: "Bars") -> "Bars":
        return replace(self, rows=np.concatenate([self.rows, other.rows]))

    @cached_property
    def clock(self) -> NDArray[np.int64]:
        """Instants in µs since 1970, (T,); the wall clock if times have no offset."""
        wall: NDArray[np.int64] = self.rows["wall"]
        return wall - self.rows["offset_s"].astype(np.int64) * 1_000_000 if self.form.is_aware else wall

    def equal(self, other: "Bars") -> NDArray[np.bool_]:
        """Which values, (T,), are those of ``other``. A missing one equals a missing one."""
        ours, theirs = self.rows["values"], other.rows["values"]
        return np.asarray(((ours == theirs) | (np.isnan(ours) & np.isnan(theirs))).all(axis=1))

    def texts(self) -> tuple[str, ...]:
        """The times, written like the series' first one."""
        offsets_s = self.rows["offset_s"].tobytes() if self.form.is_aware else None
        return _written(self.form.like, self.rows["wall"].tobytes(), offsets_s)

    def timestamps(self) -> Timestamps:
        """The times as the model reads them."""
        return parse_timestamps(self.texts())

    def payload(self, series_id: str) -> dict[str, Any]:
        """A series as the contract has it."""
        values = self.rows["values"]
        columns = {name: encode_column(values[:, at]) for at, name in enumerate(self.form.columns)}
        return {"id": series_id, "timestamps": list(self.texts()), **columns}

    def as_columns(self) -> dict[str, Any]:
        """Candles as ``submit`` takes them."""
        columns = {name: self.rows["values"][:, at].copy() for at, name in enumerate(self.form.columns)}
        return {"timestamps": list(self.texts()), **columns}

    def as_lists(self) -> dict[str, list[Any]]:
        """As ``as_columns``, in plain numbers; a missing value is None."""
        columns = self.as_columns()
        times = columns.pop("timestamps")
        return {"timestamps": times, **{name: shortest(values) for name, values in columns.items()}}

    def closes(self) -> NDArray[np.float32]:
        """The closes of the bars that have prices."""
        columns = {name: self.rows["values"][:, at] for at, name in enumerate(self.form.columns)}
        known: NDArray[np.float32] = columns["close"][~is_missing(columns)]
        return known

    @cached_property
    def table(self) -> NDArray[np.float64]:
        """Values in the order of ``COLUMNS``, (T, 6); NaN in columns that the series does not have."""
        table = np.full((len(self), len(COLUMNS)), np.nan)
        table[:, [COLUMNS.index(name) for name in self.form.columns]] = self.rows["values"]
        return table
