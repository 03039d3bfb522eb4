"""Scores of a feed's forecasts equal those that are computed afterwards from its updates and bars."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings

from kronos_client.contract.errors import JobError
from kronos_client.contract.feed import FeedUpdate
from kronos_client.feeds.feed import Feed
from kronos_client.feeds.stored import feed_key, part_key
from kronos_client.redis.connection import connect
from kronos_model.bars.synthetic import candles
from kronos_model.evaluation.naive import bootstrap_draws
from kronos_model.evaluation.scores import sample_quantiles
from tests.kronos_client.feeds.test_forecasts import (  # noqa: F401
    NAMES,
    STEPS,
    HandWorker,
    client,
    follow,
    worker,
)

LEVELS = (0.025, 0.1, 0.25, 0.5, 0.75, 0.9, 0.975)
EVENTS = ("close>last at end", "high>last+1% by 2", "low<last at 1")
PATHS = 30
OPTIONS = {"pred_len": 4, "sample_count": PATHS, "events": EVENTS, "quantiles": LEVELS}
SOME = NAMES[:3]


def bars(name: str, num_bars: int, first: int = 0) -> pd.DataFrame:
    made = pd.DataFrame(candles(seed=NAMES.index(name), bars=80).as_dict()).drop(columns="timestamps")
    made["ds"] = pd.date_range("2024-01-01", periods=len(made), freq="5min", tz="UTC")
    return made[first : first + num_bars].assign(unique_id=name)


def some_bars(num_bars: int, first: int = 0, names: Iterable[str] = SOME) -> pd.DataFrame:
    return pd.concat([bars(name, num_bars, first) for name in names])


def loss(quantiles: list[float], actual: float) -> float:
    pairs = zip(LEVELS, quantiles, strict=True)
    return sum(max(level * (actual - q), (level - 1) * (actual - q)) for level, q in pairs) / len(LEVELS)


def hits(event: str, ahead: Sequence[Any], last: float) -> bool:
    """Whether it happened in the bars up to its own."""
    if event == "high>last+1% by 2":
        return any(bar.high > 1.01 * last for bar in ahead)
    return ahead[-1].close > last if "close" in event else ahead[-1].low < last


def ratio_of(value: float, by: float) -> float | None:
    return value / by if by else None


def offline(updates: list[FeedUpdate], known: pd.DataFrame, window: int) -> dict[str, float | None]:
    """The row of one series with these bars, from its updates; None where it has no value."""
    made = [update for update in updates if update.forecast]
    columns = {name: known[name].astype(np.float32).astype(float) for name in ("high", "low", "close")}
    clock = known["ds"].astype("datetime64[us, UTC]").astype("int64").to_numpy()
    rows = dict(zip(clock, pd.DataFrame(columns).itertuples(), strict=True))
    sums = dict.fromkeys(["num", "inside_50", "inside_80", "inside_95", "loss", "naive", "missing"], 0.0)
    lasts, errors = np.array([update.last for update in made]), []
    ends = np.searchsorted(clock, lasts, side="right")

    def read_at(time: int) -> dict[int, Any]:
        """The bars of the first forecast that read past a time; earlier ones had left the window."""
        end = ends[np.searchsorted(lasts, time)]
        return {at: rows[at] for at in clock[max(0, end - window) : end]}

    for update, end in zip(made, ends, strict=True):
        past = columns["close"].to_numpy()[None, max(0, end - window) : end]
        (samples,) = [next(bootstrap_draws(past, PATHS, 4, update.forecast.seed))]
        naive = sample_quantiles(samples, LEVELS)[:, 0]
        scale = np.abs(np.diff(past)).mean()
        times = pd.to_datetime(update.forecast.timestamps, utc=True).as_unit("us").asi8
        for step, time in enumerate(times):
            if time > made[-1].last:
                break
            if time not in read_at(time):
                sums["missing"] += 1
                continue
            actual = rows[time].close
            quantiles = [np.float32(update.forecast.quantiles[str(level)]["close"][step]) for level in LEVELS]
            for number, share in enumerate((95, 80, 50)):
                sums[f"inside_{share}"] += quantiles[number] <= actual <= quantiles[-1 - number]
            sums["num"] += 1
            sums["loss"] += loss(quantiles, actual) / scale
            sums["naive"] += loss(naive[:, step], actual) / scale
        for chance, bar in zip(update.forecast.events, (4, 2, 1), strict=True):
            if times[bar - 1] > made[-1].last:
                continue
            read = read_at(times[bar - 1])
            ahead = [read[time] for time in times[:bar] if time in read]
            if times[bar - 1] in read and (times[0] >= min(read) or "high" not in chance.event):
                errors.append((chance.probability - hits(chance.event, ahead, past[0, -1])) ** 2)
    number = sums["num"]
    coverage = {f"coverage_{share}": ratio_of(sums[f"inside_{share}"], number) for share in (50, 80, 95)}
    ratio = {
        "pinball_ratio": ratio_of(sums["loss"], sums["naive"]),
        "brier": ratio_of(sum(errors), len(errors)),
    }
    return {"num_scored": number, **coverage, **ratio, "num_missing": sums["missing"]}


def check(feed: Feed, known: dict[str, pd.DataFrame], updates: Iterable[FeedUpdate] | None = None) -> None:
    """Compare all scores with those computed offline, from these updates or all that Redis has."""
    by_series: dict[str, list[FeedUpdate]] = {}
    for update in feed.updates(after="0", timeout_s=0.01) if updates is None else updates:
        by_series.setdefault(update.series, []).append(update)
    rows = {row["id"]: row for row in feed.score_rows()}
    for name, bars_of_series in known.items():
        expected = offline(by_series[name], bars_of_series, feed.spec.max_bars)
        found = {title: rows[name][title] for title in expected}
        assert found == pytest.approx(expected, rel=1e-4)  # kept as float32
    assert rows[None]["num_scored"] == sum(rows[name]["num_scored"] for name in known)


def test_scores_are_those_computed_afterwards(client):  # noqa: F811
    with client.feed("f", **OPTIONS) as feed:
        feed.append(some_bars(30))
        client.compute()
        assert feed.scores().empty
        for first in range(30, 44, 2):
            feed.append(some_bars(1, first))
            client.compute()
            feed.append(some_bars(1, first + 1, SOME[:2]))  # the last one lacks every second bar
            client.compute()
        known = {name: bars(name, 44) for name in SOME}
        known["s2"] = known["s2"].drop(index=range(31, 44, 2))
        check(feed, known)
        row = feed.scores().set_index("id").loc["s0"]
        assert row["model"] == "stand-in"
        by_step = feed.scores("horizon")
        assert list(by_step["step"]) == [1, 2, 3, 4]
        assert by_step["num_scored"].sum() == feed.scores()["num_scored"][0]
        chances = feed.scores("chance", days=1)
        assert chances["num_chances"].sum() > 50
        assert (chances["from"] - 1e-6 <= chances["mean_chance"].fillna(chances["from"])).all()


def test_a_corrected_bar_is_scored_as_it_was_first_read(client):  # noqa: F811
    with client.feed("f", **OPTIONS) as feed:
        feed.append(some_bars(30))
        client.compute()
        feed.append(some_bars(1, 30))
        client.compute()
        feed.append(some_bars(1, 30).assign(close=1.0, low=0.5))
        client.compute()
        number, coverage = feed.scores()[["num_scored", "coverage_95"]].iloc[0]
        assert (number, coverage) == (3, pytest.approx(1, abs=0.4))
        feed.append(some_bars(1, 31))
        client.compute()
        assert feed.scores()["num_scored"][0] == 3 + 9


def test_replaced_series_are_scored_anew_and_a_deleted_feed_leaves_no_scores(client):  # noqa: F811
    with client.feed("f", **OPTIONS) as feed:
        for first in (0, 30, 31):
            feed.append(some_bars(max(1, 30 - first), first))
            client.compute()
        feed.replace(some_bars(32, 0, ["s1"]))
        client.compute()
        feed.append(some_bars(1, 32))
        client.compute()
        rows = {row["id"]: row["num_scored"] for row in feed.score_rows()}
        assert rows == {None: 13, "s0": 6, "s1": 1, "s2": 6}
        for given in ({"days": 32}, {"by": "week"}):
            with pytest.raises(JobError) as error:
                feed.scores(**given)
            assert error.value.field == next(iter(given))
        feed.delete()
        with pytest.raises(JobError) as error:
            feed.scores()
        assert error.value.code == "FEED_GONE"


def test_a_deleted_feed_leaves_nothing(redis, redis_server, worker):  # noqa: F811
    with Feed.open("f", url=redis_server.url, calibration="adaptive", **OPTIONS) as feed:
        for first in (0, 30, 31):
            feed.append(some_bars(max(1, 30 - first), first))
            worker.run()
        # An append that is cut off, and a job that is not over.
        keys = [feed_key("f"), part_key("unlisted", feed._uid), part_key("blocks", feed._uid)]
        feed._store._run("feed_upload", keys, [feed._uid, 600, "cut", b"x"])
        feed.append(some_bars(1, 32))
        worker.take().take()
        assert {key.split(":")[1] for key in redis.scan_iter(f"*{feed._uid}*")} >= {
            f"feed_{kind}"
            for kind in (
                "series",
                "blocks",
                "unlisted",
                "pending",
                "scores",
                "adaptive",
                "taken",
                "latest",
                "updates",
            )
        }
        redis.hdel(f"kronos:feed_series:{feed._uid}", "s1")  # nor what belongs to a lost record
        redis.hset(f"kronos:feed_series:{feed._uid}", "s2", "another program's")
        feed.delete()
        assert list(redis.scan_iter("*feed*")) == []


@given(STEPS)
@settings(max_examples=12, deadline=None)
def test_each_bar_is_scored_once_whatever_happens_to_jobs(redis_server, steps):
    redis = connect(redis_server.url)
    redis.flushall()
    # Of two workers, so that each scores forecasts of the other, which it reads from Redis.
    workers, next_bar = [HandWorker(redis, redis_server.url) for _ in range(2)], dict.fromkeys(SOME, 30)
    with Feed.open("f", url=redis_server.url, **OPTIONS) as feed:

        def append(number: int) -> None:
            name = SOME[number % 3]
            feed.append(bars(name, 1, next_bar[name]))
            next_bar[name] += 1

        feed.append(some_bars(30))
        follow(steps, workers, redis, append)
        for each in reversed(workers):
            for number in range(3):
                append(number)
            each.run()
        check(feed, {name: bars(name, next_bar[name]) for name in SOME})
