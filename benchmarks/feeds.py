"""What does a feed save, compared with the same loop by ``forecast_many``?

A tick is a new bar of each series. The feed gets the new bars; ``forecast_many`` sends each series' whole
window. Both take turns on one Redis and one worker. Per tick: series a second, milliseconds from the append
to an update (or from the call to an outcome), CPU of the client, bytes into and out of Redis; then bytes
in Redis a series. Then bars that come every so many seconds, whether or not earlier ones are forecast: the
share that was, and milliseconds from the append to an update. Last, round trips to Redis a tick, by a model
that costs nothing, since a proxy counts them.

    python -m benchmarks.feeds [--series 200] [--ticks 5] [--models null tiny small] [--every-s 10]
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pandas as pd
from redis import Redis

from benchmarks.support.harness import Table, in_turn, medians, options
from benchmarks.support.round_trips import RoundTrips
from benchmarks.support.workers import NULL, REAL, TINY, Workers
from benchmarks.support.workload import save_random_pair
from kronos_client.client import ForecastClient
from kronos_client.feeds.feed import Feed
from kronos_model.bars.synthetic import candles

WINDOW: Final = 512
LEVELS: Final = (0.025, 0.1, 0.25, 0.5, 0.75, 0.9, 0.975)
WAIT_S: Final = 300.0


class Tick(NamedTuple):
    """What one tick of one way measured."""

    series_per_s: float
    p50_ms: float
    p95_ms: float
    client_ms: float
    kb_in: float
    kb_out: float


class Loop:
    """Series whose bars arrive one by one, forecast by a feed or by ``forecast_many``."""

    def __init__(self, client: ForecastClient, redis: Redis, feed: Feed, num_series: int, given: Any) -> None:
        self._client, self._redis, self._feed, self._given = client, redis, feed, given
        known = [pd.DataFrame(candles(seed % 8, WINDOW + 100).as_dict()) for seed in range(num_series)]
        for bars in known:
            bars["ds"] = pd.date_range("2024-01-01", periods=len(bars), freq="5min", tz="UTC")
        self._series = {f"s{number:04}": bars.drop(columns="timestamps") for number, bars in enumerate(known)}
        self._ends = {"feed": WINDOW, "many": WINDOW}

    def fill(self) -> None:
        """Append all windows, and wait for their forecasts."""
        after = self._feed.last_update_id()
        self._feed.append(self._bars(0, WINDOW))
        self._await(after, time.perf_counter())

    def feed(self) -> Tick:
        """A tick of the feed."""
        bars, after = self._bars(self._ends["feed"], self._ends["feed"] + 1), self._feed.last_update_id()
        self._ends["feed"] += 1

        def run(start: float) -> list[float]:
            self._feed.append(bars)
            return self._await(after, start)

        return self._measured(run)

    def paced(self, num_ticks: int, every_s: float) -> tuple[float, float, float]:
        """The share of bars that were forecast, and p50 and p95 of milliseconds from their append."""
        after, begun_at = self._feed.last_update_id(), dict[str, float]()
        elapsed_ms: list[float] = []
        for _ in range(num_ticks):
            bars = self._bars(self._ends["feed"], self._ends["feed"] + 1)
            self._ends["feed"] += 1
            begun = begun_at[str(bars["ds"].iloc[0])] = time.perf_counter()
            self._feed.append(bars)
            while (left_s := begun + every_s - time.perf_counter()) > 0:
                for update in self._feed.next_updates(after, left_s):
                    after = update.id
                    since = begun_at[str(pd.Timestamp(update.last_time))]
                    elapsed_ms.append(1e3 * (time.perf_counter() - since))
        share = len(elapsed_ms) / (num_ticks * len(self._series))
        return share, statistics.median(elapsed_ms), statistics.quantiles(elapsed_ms, n=20)[-1]

    def many(self) -> Tick:
        """A tick of ``forecast_many``."""
        end = self._ends["many"] = self._ends["many"] + 1
        items = [(name, bars[end - WINDOW : end].set_index("ds")) for name, bars in self._series.items()]

        def run(start: float) -> list[float]:
            outcomes = self._client.forecast_many(items, **self._given, in_order=False, forget=True)
            return [time.perf_counter() - start for outcome in outcomes if outcome.unwrap()]

        return self._measured(run)

    def kb_a_series(self) -> float:
        """What the feed takes in Redis."""
        used = sum(
            self._redis.memory_usage(key, samples=0) or 0 for key in self._redis.scan_iter("kronos:feed*")
        )  # type: ignore[misc]
        return float(used) / len(self._series) / 1000

    def _bars(self, first: int, last: int) -> pd.DataFrame:
        return pd.concat([bars[first:last].assign(unique_id=name) for name, bars in self._series.items()])

    def _await(self, after: str, start: float) -> list[float]:
        seen: dict[str, float] = {}
        while len(seen) < len(self._series):
            if time.perf_counter() - start > WAIT_S:
                raise TimeoutError(f"{len(seen)} of {len(self._series)} series within {WAIT_S} s")
            for update in self._feed.next_updates(after):
                after = update.id
                seen[update.series] = time.perf_counter() - start
        return [*seen.values()]

    def _measured(self, run: Any) -> Tick:
        before, cpu, start = self._network(), time.process_time(), time.perf_counter()
        elapsed_s = run(start)
        client_ms = 1e3 * (time.process_time() - cpu)
        kb = [(now - then) / 1e3 for now, then in zip(self._network(), before, strict=True)]
        p95 = statistics.quantiles(elapsed_s, n=20)[-1]
        per_s = len(elapsed_s) / max(elapsed_s)
        return Tick(per_s, 1e3 * statistics.median(elapsed_s), 1e3 * p95, client_ms, *kb)

    def _network(self) -> tuple[int, int]:
        found: Any = self._redis.info("stats")
        return found["total_net_input_bytes"], found["total_net_output_bytes"]


@contextmanager
def loop_of(
    model: str, given: argparse.Namespace, *, counts: bool = False
) -> Iterator[tuple[Loop, Workers, RoundTrips]]:
    """Both ways, on a worker with this model. ``counts``: all through proxies that count round trips."""
    settings: dict[str, str] = dict(TINY)
    asked: Any = {"pred_len": given.horizon, "sample_count": given.samples, "quantiles": LEVELS, "seed": 1}
    with tempfile.TemporaryDirectory() as folder:
        if model == "small":
            settings = save_random_pair("small", Path(folder)) | {"KRONOS_MAX_CONTEXT": "512"}
        with (
            Workers(NULL if model == "null" else REAL, settings, counts=counts) as workers,
            RoundTrips(workers.url) as of_client,
            ForecastClient(of_client.url if counts else workers.url) as client,
            Redis.from_url(workers.url) as redis,
            client.feed("benchmark", **asked, closed_only=False) as feed,
        ):
            loop = Loop(client, redis, feed, given.series, asked)
            loop.fill()
            yield loop, workers, of_client


def main() -> None:
    given = options(
        __doc__, series=200, ticks=5, models=["null", "tiny", "small"], samples=1, horizon=12, every_s=0.0
    )
    table = Table(
        "model:<6", "way:<5", "series/s:>9.1f", "p50 ms:>8.0f", "p95 ms:>8.0f", "client CPU ms:>14.0f",
        "kB in:>8.0f", "kB out:>8.0f", "kB a series:>12.1f",
    )  # fmt: skip
    paced = dict[str, tuple[float, float, float]]()
    for model in given.models:
        with loop_of(model, given) as (loop, *_):
            ticks = in_turn({"feed": loop.feed, "many": loop.many}, given.ticks + 1)
            for way, (_, *measured) in ticks.items():  # the first tick warms up
                table.row(model, way, *medians(measured), loop.kb_a_series() if way == "feed" else 0.0)
            if given.every_s:
                paced[model] = loop.paced(given.ticks, given.every_s)
    table = Table("every s:>8.1f", "model:<6", "forecast:>9.1%", "p50 ms:>8.0f", "p95 ms:>8.0f")
    for model, figures in paced.items():
        table.row(given.every_s, model, *figures)
    table = Table("way:<5", "of client:>10.0f", "of worker:>10.0f")
    with loop_of("null", given, counts=True) as (loop, workers, of_client):
        idle_per_s = workers.round_trips.idle_per_s(3.0)
        for tick in (loop.feed, loop.many):
            tick()
            ours, theirs = of_client.during(tick)[0], workers.round_trips.during(tick, idle_per_s)[0]
            table.row(tick.__name__, ours, theirs)


if __name__ == "__main__":
    main()
