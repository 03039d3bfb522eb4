"""The summary of a job's arguments in events and Flower: instruments and horizon, no candles."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeGuard

from kronos_model.text import cut

MAX_SERIES: Final = 3
MAX_CHARS: Final = 32
"""The most characters of one name."""


def shown_arguments(kwargs: Any) -> str:
    """A short form of a task's keyword arguments: ``{'series': 'BTC, ETH', 'pred_len': 96, 'samples': 20}``.

    A finetuning job shows its model's name and, as a backtest, its only path of candles. Nothing was checked
    before, so invalid parts are left out.
    """
    job = kwargs.get("job") if isinstance(kwargs, Mapping) else None
    if not isinstance(job, Mapping):
        return "{}"
    shown: dict[str, Any] = {}
    name, series, data = job.get("name"), job.get("series"), job.get("data")
    if isinstance(name, str):
        shown["name"] = _text(name)
    if isinstance(data, Mapping) and isinstance(data.get("path"), str):
        shown["data"] = _text(data["path"])
    if _is_list(series):
        ids = [_text(one.get("id")) for one in series[:MAX_SERIES] if isinstance(one, Mapping)]
        more = [f"… ({len(series)})"] if len(series) > MAX_SERIES else []
        shown["series"] = ", ".join(ids + more)
        if (horizon := horizon_of(job)) is not None:
            shown["pred_len"] = horizon
    sampling = job.get("sampling")
    if isinstance(sampling, Mapping) and isinstance(sampling.get("sample_count"), int):
        shown["samples"] = sampling["sample_count"]
    return repr(shown)


def horizon_of(job: Mapping[str, Any]) -> int | None:
    """The bars that a job asks for, by ``pred_len`` or its first series; None if it names neither."""
    series = job.get("series")
    first = series[0] if _is_list(series) and series and isinstance(series[0], Mapping) else {}
    future = first.get("future_timestamps")
    horizon = job.get("pred_len") or (len(future) if _is_list(future) else None)
    return horizon if isinstance(horizon, int) else None


def _is_list(value: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _text(value: Any) -> str:
    text = value if isinstance(value, str) and value.isprintable() else "?"
    return cut(text, MAX_CHARS)
