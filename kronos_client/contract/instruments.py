"""A finetuning job's inline candles as arrays."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kronos_client.contract.errors import JobError
from kronos_client.contract.forecast import CandleInput
from kronos_client.contract.preparing import read_columns
from kronos_model.bars.timestamps import parse_timestamps
from kronos_model.errors import TimestampError


@dataclass(frozen=True, eq=False)
class PreparedInstrument:
    """One instrument's candles, checked.

    Attributes:
        timestamps: as written, T of them.
        columns: those that were given, each (T,) float64 and read-only.
    """

    id: str
    timestamps: tuple[str, ...]
    columns: dict[str, NDArray[np.float64]]


def prepare_instruments(instruments: Sequence[CandleInput]) -> tuple[PreparedInstrument, ...]:
    """The instruments in the job's order; raises JobError with the field and the row at fault."""
    return tuple(_prepare(one, f"data.instruments.{index}.") for index, one in enumerate(instruments))


def _prepare(instrument: CandleInput, prefix: str) -> PreparedInstrument:
    columns = read_columns(instrument, prefix)
    try:
        timestamps = parse_timestamps(instrument.timestamps).texts
    except TimestampError as error:
        raise JobError.from_kronos(error, prefix=prefix) from None
    return PreparedInstrument(instrument.id, timestamps, columns)
