"""A universe of 500 symbols with the bundled model, for an hour; a worker is killed every five minutes."""

import threading
import time
from collections import Counter

import pandas as pd
import pytest

from kronos_client.contract.feed import FeedUpdate
from kronos_client.feeds.feed import Feed
from kronos_model.bars.synthetic import candles
from tests.faults.conftest import Note
from tests.faults.fleet import Fleet, Worker
from tests.faults.redis_under_fault import RedisUnderFault
from tests.integration.conftest import PARITY_SETTINGS
from tests.kronos_client.feeds.test_scores import OPTIONS, check

NUM_SERIES = 500
WINDOW = 256
NUM_TICKS = 120
TICK_S = 30.0
TICKS_PER_KILL = 10
VISIBILITY_TIMEOUT_S = 20
LAST_TICK_S = 600
"""More than a slow machine needs for a whole tick, and what a killed worker held."""


def made(number: int) -> pd.DataFrame:
    """Bars of a minute, as many as all ticks need."""
    columns = candles(seed=number, bars=WINDOW + NUM_TICKS).columns
    times = pd.date_range("2024-01-01", periods=WINDOW + NUM_TICKS, freq="min", tz="UTC")
    return pd.DataFrame({"unique_id": f"s{number}", "ds": times, **columns})


@pytest.mark.at_length
@pytest.mark.timeout(2 * 3600)
def test_an_hour(fleet: Fleet, redis: RedisUnderFault, note: Note) -> None:
    bundled = dict.fromkeys(PARITY_SETTINGS, "") | {"KRONOS_MODEL": "tiny"}
    timeout = {"KRONOS_VISIBILITY_TIMEOUT_S": str(VISIBILITY_TIMEOUT_S)}

    def begin() -> Worker:
        return fleet.begin(command=("celery", "-A", "worker.app", "worker"), **bundled, **timeout)

    bars = [made(number) for number in range(NUM_SERIES)]
    updates: list[FeedUpdate] = []
    is_over = threading.Event()
    feed = Feed.open("universe", url=redis.url, max_bars=WINDOW, **OPTIONS)

    def read() -> None:
        with Feed.open("universe", url=redis.url) as reader:
            after = "0"
            while (found := reader.next_updates(after, 1.0)) or not is_over.is_set():
                updates.extend(found)
                after = found[-1].id if found else after

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    for worker in [begin(), begin()]:
        worker.wait_until_ready()
    num_kills = 0
    began = time.monotonic()
    for tick in range(NUM_TICKS):
        feed.append(pd.concat([rows[: WINDOW + tick + 1][-WINDOW if tick == 0 else -1 :] for rows in bars]))
        if tick % TICKS_PER_KILL == TICKS_PER_KILL - 1:
            fleet.running[0].kill()
            begin()
            num_kills += 1
        time.sleep(max(0.0, began + (tick + 1) * TICK_S - time.monotonic()))
    newest = bars[0]["ds"].iloc[-1]

    def is_current() -> bool:
        rows = feed.rows()
        return len(rows) == NUM_SERIES and all(pd.Timestamp(row["last_time"]) == newest for row in rows)

    ended = time.monotonic()
    while not is_current():
        assert time.monotonic() < ended + LAST_TICK_S, "not every newest bar is forecast"
        time.sleep(1)
    waited_s = time.monotonic() - ended
    is_over.set()
    reader.join()
    seen = Counter((update.series, update.version) for update in updates)
    note("seconds from the last tick until every newest bar is forecast", waited_s)
    note("updates, ticks of series, kills", [len(updates), NUM_SERIES * NUM_TICKS, num_kills])
    assert max(seen.values()) == 1
    by_series: dict[str, list[int]] = {}
    for update in updates:
        by_series.setdefault(update.series, []).append(update.version)
        assert update.failure is None
    assert all(sorted(versions) == versions for versions in by_series.values())
    assert {name: versions[-1] for name, versions in by_series.items()} == {
        rows["unique_id"][0]: NUM_TICKS for rows in bars
    }
    check(feed, {rows["unique_id"][0]: rows for rows in bars}, updates)
    assert len(fleet.running) == 2, fleet.logs()
