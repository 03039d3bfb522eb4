"""How often a client asks Redis, and over how many connections."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from redis import connection as blocking
from redis.asyncio import connection as awaited

from kronos_client.aio import AsyncForecastClient
from kronos_client.client import ForecastClient
from kronos_client.contract.names import job_key, result_key
from kronos_client.contract.schemas import example
from kronos_client.core.many import MAX_TOGETHER
from kronos_model.bars.synthetic import candles
from tests.faults.proxy import FaultyProxy
from tests.waiting import await_true, repeated

CANDLES = candles(seed=1, bars=60).as_dict()
NUM_ITEMS = 5 * MAX_TOGETHER


class Watched:
    """What a client at ``url`` writes to Redis; an entry is one command, or several that go together."""

    def __init__(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.url = url
        self.writes: list[bytes] = []
        self.connections = set[Any]()
        port = url.rpartition(":")[2].partition("/")[0]
        for kind in (blocking.Connection, awaited.Connection):

            def counted(
                connection: Any, command: Any, *more: Any, send: Any = kind.send_packed_command, **how: Any
            ):
                if str(connection.port) == port:
                    self.connections.add(connection)
                    self.writes.append(command if isinstance(command, bytes) else b"".join(command))
                return send(connection, command, *more, **how)

            monkeypatch.setattr(kind, "send_packed_command", counted)

    def begin(self, client: ForecastClient) -> None:
        """Connect, and count from here on."""
        first = client.submit(CANDLES, pred_len=5)
        first.wait()
        first.state()  # after all reading for it
        self.writes.clear()


@pytest.fixture
def watched(settings, monkeypatch) -> Iterator[Watched]:
    """Without reading workers and jobs again, however slow the machine is."""
    monkeypatch.setattr("kronos_client.core.dispatcher.WORKERS_KNOWN_FOR_S", 1e9)
    monkeypatch.setattr("kronos_client.core.result_events.LOOK_INTERVAL_S", 1e9)
    with FaultyProxy(settings.redis_url.get_secret_value()) as proxy:
        yield Watched(proxy.url, monkeypatch)


@contextmanager
def jobs_ended(backend: Any, redis: Any) -> Iterator[None]:
    """Ends jobs, as workers would, once the client has subscribed to them: it does not look again here."""
    ended = set[str]()

    def end() -> None:
        for channel in set(redis.pubsub_channels(result_key("*"))) - ended:
            ended.add(channel)
            backend.mark_as_done(channel.removeprefix(result_key("")), example("forecast-result"))

    with repeated(end, every_s=0.01):
        yield


def test_a_job_takes_two_round_trips(watched, backend, redis):
    with ForecastClient(watched.url) as client, jobs_ended(backend, redis):
        watched.begin(client)
        client.submit(CANDLES, pred_len=5).wait()
        assert len(watched.writes) == 2


def test_a_batch_takes_two_round_trips(watched, backend, redis):
    async def forecast_all() -> int:
        async with AsyncForecastClient(watched.url) as client:
            first = await client.submit(CANDLES, pred_len=5)
            await first.wait()
            await first.state()  # after all reading for it
            watched.writes.clear()
            run = client.forecast_many([CANDLES] * NUM_ITEMS, pred_len=5, max_in_flight=NUM_ITEMS)
            return sum([outcome.result is not None async for outcome in run])

    with jobs_ended(backend, redis):
        assert asyncio.run(forecast_all()) == NUM_ITEMS
    assert len(watched.writes) == 2 * NUM_ITEMS // MAX_TOGETHER


def test_a_batch_of_a_client_without_event_loop_takes_two_round_trips(watched, backend, redis, monkeypatch):
    monkeypatch.setattr("kronos_client.core.many.COLLECT_S", 1e9)
    with ForecastClient(watched.url) as client, jobs_ended(backend, redis):
        watched.begin(client)
        outcomes = client.forecast_many([CANDLES] * MAX_TOGETHER, pred_len=5)
        assert sum(outcome.result is not None for outcome in outcomes) == MAX_TOGETHER
    assert len(watched.writes) == 2


def test_items_that_come_slowly_are_sent_one_by_one(watched, backend, redis, monkeypatch):
    monkeypatch.setattr("kronos_client.core.many.COLLECT_S", 0.0)

    def source():
        for number in range(3):
            await_true(lambda number=number: len(redis.keys(job_key("*"))) == number)
            yield CANDLES

    with ForecastClient(watched.url) as client, jobs_ended(backend, redis):
        assert all(outcome.result for outcome in client.forecast_many(source(), pred_len=5))


def test_a_client_has_one_connection_that_sends_and_one_that_waits(watched, backend, redis):
    with ForecastClient(watched.url) as client, jobs_ended(backend, redis):
        for _ in range(3):
            client.forecast(CANDLES, pred_len=5)
            client.workers()
            client.forecast_handle(client.submit(CANDLES, pred_len=5).id).cancel()
    assert len(watched.connections) == 2
