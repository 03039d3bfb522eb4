"""The sources of docs/recipes/exchange.md against a stand-in for an exchange, through breaks of all kinds."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from redis import Redis

from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.contract.errors import JobError
from kronos_client.feeds.blocks import Record
from kronos_client.feeds.feed import Feed
from tests.faults.proxy import FaultyProxy, Rule
from tests.integration.conftest import ROOT
from tests.integration.exchange import Exchange
from tests.integration.test_recipes import Reader
from tests.waiting import await_true


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    reader = Reader(tmp_path, {})
    reader.change("keep_current.py", "PAUSE_S = 5", "PAUSE_S = 0.2")
    return reader


@contextmanager
def kept_by(reader: Reader, name: str, url: str) -> Iterator[Callable[[], None]]:
    """A script that runs for ever; the call asserts that it still does."""
    command = [sys.executable, "-u", name]
    environment = reader.environment | {
        "KRONOS_REDIS_URL": url,
        "PYTHONPATH": os.pathsep.join([*sys.path, str(ROOT)]),
    }
    with (
        (reader.folder / f"{name}.log").open("w+") as log,
        subprocess.Popen(command, cwd=reader.folder, env=environment, stdout=log, stderr=log) as process,
    ):

        def check() -> None:
            assert process.poll() is None, Path(log.name).read_text()

        try:
            yield check
            check()
        finally:
            process.kill()


def await_whole(
    url: str, name: str, series: dict[str, str], exchange: Exchange, check: Callable[[], None]
) -> dict[str, Record]:
    """Wait until a feed has a bar of each series that closes from now on. It must have all before.

    Args:
        series: The exchange's symbol by the series' id.
    """
    now = pd.Timestamp.now("UTC")

    def records() -> dict[str, Record] | None:
        check()
        try:
            with Feed.open(name, url=url) as feed:
                reads = dict(zip(series, feed._store.read(feed._uid, list(series)), strict=True))
                if not all(read.record and read.record.last >= now.value // 1000 for read in reads.values()):
                    return None
                for series_id, symbol in series.items():
                    held = pd.DataFrame(feed.bars(series_id)).set_index("timestamps")
                    held.index = pd.to_datetime(held.index, utc=True)
                    wanted = exchange.bars(symbol)[held.index[0] : held.index[-1]]
                    assert len(held) > feed.spec.max_bars - 5  # some may have closed meanwhile
                    assert list(held.index) == list(wanted.index)
                    assert np.array_equal(held, wanted[list(held)].astype("float32"))
                return {series_id: read.record for series_id, read in reads.items() if read.record}
        except JobError as error:
            if error.code not in ("FEED_NOT_FOUND", "FEED_GONE"):
                raise
            return None

    found: list[dict[str, Record] | None] = []
    await_true(lambda: (found.append(records()), found[-1])[1], f"{name} has newer bars")
    assert found[-1] is not None
    return found[-1]


def test_klines_of_a_websocket_are_kept_through_breaks(reader):
    series = {"BTCUSDT": "BTCUSDT", "ETHUSDT": "ETHUSDT"}
    with Exchange() as exchange, LocalRedis() as redis, FaultyProxy(redis.url) as proxy:
        reader.change("binance_klines.py", "https://api.binance.com", f"http://{exchange.address}")
        reader.change("binance_klines.py", "wss://stream.binance.com:9443", f"ws://{exchange.address}")
        reader.change("binance_klines.py", '"1m"', '"1s"')
        with kept_by(reader, "binance_klines.py", proxy.url) as check:

            def kept() -> dict[str, Record]:
                return await_whole(redis.url, "binance", series, exchange, check)

            kept()
            exchange.is_down = True
            time.sleep(2.5)
            exchange.is_down = False
            kept()
            proxy.rules = [rule := Rule("MISCONF cannot write", lambda asked: asked.script == "feed_append")]
            await_true(lambda: rule.num_hits > 2, "appends fail")
            proxy.rules = []
            kept()
            Redis.from_url(redis.url).flushall()
            assert all(record.num_corrections == 0 for record in kept().values())
            exchange.halve_prices()
            exchange.is_down = True
            time.sleep(0.5)
            exchange.is_down = False
            assert all(record.num_restarts == 1 for record in kept().values())


def test_bars_by_ccxt_are_kept_through_breaks(reader):
    if find_spec("ccxt") is None:
        pytest.skip("ccxt is not installed, as .ci/run does: pip install --no-deps ccxt==4.5.90")
    series = {"BTC/USDT": "BTCUSDT", "ETH/USDT": "ETHUSDT", "SOL/USDT": "SOLUSDT"}
    with Exchange() as exchange, LocalRedis() as redis:
        options = {
            "urls": {"api": {"public": f"http://{exchange.address}/api/v3"}},
            "options": {"fetchMarkets": {"types": ["spot"]}},
        }
        reader.change("ccxt_bars.py", "ccxt.binance()", f"ccxt.binance({options})")
        reader.change("ccxt_bars.py", '"5m"', '"1s"')
        reader.change("ccxt_bars.py", "DELAY_S = 2", "DELAY_S = 0.3")
        with kept_by(reader, "ccxt_bars.py", redis.url) as check:

            def kept(*without: str) -> None:
                left = {name: symbol for name, symbol in series.items() if symbol not in without}
                records = await_whole(redis.url, "ccxt", left, exchange, check)
                assert all(record.num_corrections == 0 for record in records.values())

            kept()
            exchange.is_down = True
            time.sleep(2.5)
            exchange.is_down = False
            exchange.delisted = {"SOLUSDT"}
            kept("SOLUSDT")
            exchange.delisted = set()
            kept()
            Redis.from_url(redis.url).flushall()
            kept()
