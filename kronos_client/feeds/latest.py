"""A feed's newest forecasts as rows: how old they are, quantiles and chances. No Redis."""

from collections.abc import Iterator, Mapping
from typing import Any

from kronos_client.contract.results import quantile_key
from kronos_client.feeds.options import FeedSpec
from kronos_client.feeds.update import FeedUpdate


def latest_columns(spec: FeedSpec) -> list[str]:
    """The columns of the rows."""
    quantiles = [f"close_q{quantile_key(level)}" for level in spec.job["output"]["quantiles"]]
    ages = ["id", "last_time", "age_s", "overdue_s", "is_current"]
    return [*ages, "close_mean", *quantiles, *spec.events, "drift", "error"]


def latest_rows(
    known: Mapping[str, tuple[int, float, int | None]],
    updates: Mapping[str, FeedUpdate],
    spec: FeedSpec,
    now: float,
) -> Iterator[dict[str, Any]]:
    """A row for each series, in the order of ``known``.

    Args:
        known: By series its newest version, the moment at which that was appended, and its newest instant.
        now: Unix time by Redis's clock.
    """
    for series, (version, appended_at, last) in known.items():
        update = updates.get(series)
        row: dict[str, Any] = dict.fromkeys(latest_columns(spec))
        row |= {"id": series, "age_s": round(now - appended_at, 3), "is_current": False}
        if update is not None:
            overdue_s = _overdue_s(update, last, now)
            is_newest = update.version == version and update.forecast is not None
            row |= {"last_time": update.last_time, "age_s": round(now - update.appended_at, 3)}
            row |= {"overdue_s": overdue_s, "is_current": is_newest and not overdue_s}
            row["drift"] = update.drift
            row["error"] = None if update.failure is None else update.failure.code
        if update is not None and update.forecast is not None:
            row["close_mean"] = update.forecast.mean["close"][-1]
            for level, columns in update.forecast.quantiles.items():
                row[f"close_q{level}"] = columns["close"][-1]
            row |= {chance.event: chance.probability for chance in update.forecast.events}
        yield row


def _overdue_s(update: FeedUpdate, last: int | None, now: float) -> float | None:
    """Seconds since the next bar should have ended, 0 before; None if that is not known."""
    if update.next_ends_at is None or update.last is None:
        return None
    newer_s = 0.0 if last is None else (last - update.last) / 1e6  # bars that no forecast has read yet
    return max(0.0, round(now - update.next_ends_at - newer_s, 3))
