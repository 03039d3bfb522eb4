"""Jobs for the contract's tests, made as a client would send them."""

import copy
from datetime import datetime, timedelta
from typing import Any

import numpy as np


def timestamps(num_bars: int, *, start: str = "2024-01-01T00:00:00", suffix: str = "") -> list[str]:
    """Bars an hour apart."""
    first = datetime.fromisoformat(start)
    return [(first + timedelta(hours=ahead)).isoformat() + suffix for ahead in range(num_bars)]


def series(series_id: str = "a", num_bars: int = 30, **changes: Any) -> dict[str, Any]:
    """One series with all columns as arrays."""
    close = 10 + np.sin(np.arange(num_bars))
    columns = {"open": close, "high": close + 1, "low": close - 1, "close": close, "volume": close * 100}
    return {
        "id": series_id,
        "timestamps": timestamps(num_bars),
        **{name: values.tolist() for name, values in columns.items()},
        **changes,
    }


def job(*several: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A job that asks for five bars."""
    return copy.deepcopy({"series": list(several) or [series()], "pred_len": 5, **changes})


def without(mapping: dict[str, Any], *names: str) -> dict[str, Any]:
    """The same without some fields."""
    return {name: value for name, value in mapping.items() if name not in names}
