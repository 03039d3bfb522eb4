"""A feed's forecasts as callers read them: the newest as rows, and earlier ones of a series. No Redis."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from kronos_client.contract.columns import shortest
from kronos_client.contract.feed import FeedUpdate, PastForecast
from kronos_client.contract.manifest import Manifest
from kronos_client.contract.results import SCORED_LEVELS, quantile_key
from kronos_client.feeds.bars import Bars
from kronos_client.feeds.options import FeedSpec
from kronos_client.feeds.scores import PendingForecast
from kronos_model.bars.timestamps import parse_timestamps, write_like


def latest_columns(spec: FeedSpec) -> list[str]:
    """The columns of the rows."""
    quantiles = [f"close_q{quantile_key(level)}" for level in spec.job["output"]["quantiles"]]
    ages = ["id", "last_time", "last_close", "age_s", "overdue_s", "is_current"]
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
            row |= {"last_time": update.last_time, "last_close": update.last_close}
            row["age_s"] = round(now - update.appended_at, 3)
            row |= {"overdue_s": overdue_s, "is_current": is_newest and not overdue_s}
            row["drift"] = update.drift
            row["error"] = None if update.failure is None else update.failure.code
        if update is not None and update.forecast is not None:
            row["close_mean"] = update.forecast.mean["close"][-1]
            for level, columns in update.forecast.quantiles.items():
                row[f"close_q{level}"] = columns["close"][-1]
            row |= {chance.event: chance.probability for chance in update.forecast.events}
        yield row


def past_forecasts(
    kept: Mapping[int, bytes], num_restarts: int, bars: Bars, newest: FeedUpdate
) -> Iterator[PastForecast]:
    """The forecasts before the newest one, since the series was last replaced, in order.

    Args:
        kept: What is kept of them, by version.
    """
    ahead = parse_timestamps(newest.forecast.timestamps) if newest.forecast else None
    offsets: dict[int, int] = {}  # by instant
    if bars.form.is_aware:
        offsets = dict(zip(bars.clock.tolist(), bars.rows["offset_s"].tolist(), strict=True))
        if ahead is not None and ahead.offsets_s is not None:
            offsets |= zip(ahead.clock.tolist(), ahead.offsets_s.tolist(), strict=True)
    last = int(bars.rows["offset_s"][-1]) if offsets else 0  # for bars that never came
    for version, past in sorted(PendingForecast.known(kept).items()):
        if version >= newest.version or past.num_restarts != num_restarts:
            continue
        offsets_s = np.array([offsets.get(time, last) for time in past.times.tolist()])
        wall = (past.times + offsets_s * 1_000_000).astype("datetime64[us]")
        levels = zip(map(quantile_key, SCORED_LEVELS), past.quantiles[0], strict=True)
        yield PastForecast(
            version=version,
            model=past.model,
            timestamps=write_like(bars.form.like, wall, offsets_s if offsets else None),
            quantiles={level: {"close": tuple(shortest(values))} for level, values in levels},
            manifest=Manifest.from_bytes(past.manifest) if past.manifest else None,
        )


def _overdue_s(update: FeedUpdate, last: int | None, now: float) -> float | None:
    """Seconds since the next bar should have ended, 0 before; None if that is not known."""
    if update.next_ends_at is None or update.last is None:
        return None
    newer_s = 0.0 if last is None else (last - update.last) / 1e6  # bars that no forecast has read yet
    return max(0.0, round(now - update.next_ends_at - newer_s, 3))
