"""The client for asyncio: over the real client on a real Redis, and over the fake."""

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import pytest

from kronos_client.aio import AsyncForecastClient
from kronos_client.client import ForecastClient
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import result_key
from kronos_client.testing import FakeAsyncForecastClient, FakeForecastClient
from kronos_model.bars.synthetic import candles
from tests.kronos_client.client_bench import RESULT, ClientBench, WeakCandles, client_bench
from tests.waiting import WAIT_S

CANDLES = candles(seed=1, bars=60).as_dict()


class AsyncBench:
    """An asynchronous client, and its workers' side."""

    def __init__(self, bench: ClientBench) -> None:
        self.bench = bench

    @asynccontextmanager
    async def client(self) -> AsyncIterator[AsyncForecastClient]:
        async with self.bench.make_client(is_awaited=True) as client:
            yield client


@pytest.fixture(params=["real", "fake"])
def bench(request, settings, redis):
    with client_bench(request.param, settings, redis) as bench:
        yield AsyncBench(bench)


def with_client(bench: AsyncBench, use: Callable[[AsyncForecastClient], Awaitable[object]]) -> None:
    """Run ``use`` in an event loop of its own, with a client."""

    async def main() -> None:
        async with asyncio.timeout(WAIT_S), bench.client() as client:
            await use(client)

    asyncio.run(main())


async def all_end(bench: AsyncBench, num_jobs: int) -> None:
    """End jobs until so many have been."""
    ended = 0
    while ended < num_jobs:
        for job_id in await asyncio.to_thread(bench.bench.waiting):
            await asyncio.to_thread(bench.bench.finish, job_id)
            ended += 1
        await asyncio.sleep(0.005)


def test_jobs_are_awaited_together_without_a_thread_for_each(bench, monkeypatch):
    # States come by publication alone.
    monkeypatch.setattr("kronos_client.core.result_events.LOOK_INTERVAL_S", 1000.0)

    async def use(client: AsyncForecastClient) -> None:
        handles = [await client.submit(CANDLES, pred_len=5) for _ in range(60)]
        waits = [asyncio.create_task(handle.wait(WAIT_S)) for handle in handles]
        while client._core.events.num_jobs < 60:
            await asyncio.sleep(0)
        assert threading.active_count() < 40
        await all_end(bench, 60)
        assert await asyncio.gather(*waits) == [RESULT] * 60

    with_client(bench, use)


def test_a_forecast_in_one_go(bench):
    async def use(client: AsyncForecastClient) -> None:
        ending = asyncio.create_task(all_end(bench, 1))
        assert await client.forecast(CANDLES, pred_len=5, timeout_s=WAIT_S, forget=True) == RESULT
        await ending

    with_client(bench, use)


def test_event_loops_one_after_the_other_and_at_once_share_a_client(bench):
    client = bench.bench.make_client(is_awaited=True)

    async def use() -> None:
        async with asyncio.timeout(WAIT_S):
            forecasts = [client.forecast(CANDLES, pred_len=5, timeout_s=WAIT_S) for _ in range(3)]
            assert await asyncio.gather(*forecasts) == [RESULT] * 3

    async def end(num_jobs: int) -> None:
        async with asyncio.timeout(WAIT_S):
            await all_end(bench, num_jobs)

    for _ in range(3):
        with ThreadPoolExecutor() as threads:
            running = [threads.submit(asyncio.run, use()) for _ in range(2)]
            ending = threads.submit(asyncio.run, end(6))
            for each in (*running, ending):
                each.result()
    asyncio.run(client.aclose())
    with pytest.raises(RuntimeError, match="was closed: make a new one"):
        asyncio.run(client.submit(CANDLES, pred_len=5))
    assert not bench.bench.waiting()


async def code_of(awaitable: Awaitable[object]) -> str:
    with pytest.raises(JobError) as ended:
        await awaitable
    return ended.value.code


def test_a_forecast_that_is_no_longer_awaited_is_cancelled(bench):
    async def use(client: AsyncForecastClient) -> None:
        waiting = asyncio.create_task(client.forecast(CANDLES, pred_len=5, job_id="b"))
        while "b" not in bench.bench.waiting():
            await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await code_of(client.forecast_handle("b").wait(WAIT_S)) == ErrorCode.CANCELLED

    with_client(bench, use)


@pytest.mark.parametrize("in_order", [True, False])
def test_outcomes_come_while_the_next_item_is_awaited(bench, in_order):
    async def use(client: AsyncForecastClient) -> None:
        is_given = asyncio.Event()

        async def live():
            for number in range(3):
                yield number, CANDLES
                await is_given.wait()
                is_given.clear()

        async with asyncio.timeout(20):
            ending = asyncio.create_task(all_end(bench, 3))
            keys = []
            async for outcome in client.forecast_many(live(), in_order=in_order, pred_len=5):
                assert outcome.result == RESULT
                keys.append(outcome.key)
                is_given.set()
            await ending
        assert keys == [0, 1, 2]

    with_client(bench, use)


@pytest.mark.parametrize("how", ["closed", "cancelled"])
def test_leaving_the_loop_ends_the_waiting_for_the_next_item(bench, how):
    async def use(client: AsyncForecastClient) -> None:
        awaited = []
        is_awaited = asyncio.Event()

        async def live():
            yield {}
            try:
                is_awaited.set()
                await asyncio.Event().wait()
            finally:
                awaited.append("ended")

        async def loop() -> None:
            outcomes = client.forecast_many(live(), pred_len=5)
            assert (await anext(outcomes)).error
            await is_awaited.wait()
            if how == "closed":
                await outcomes.aclose()
            else:
                await anext(outcomes)

        before = asyncio.all_tasks()
        looping = asyncio.create_task(loop())
        if how == "closed":
            await looping
        else:
            await is_awaited.wait()
            await asyncio.sleep(0)
            looping.cancel()
            with pytest.raises(asyncio.CancelledError):
                await looping
        assert awaited == ["ended"]
        assert asyncio.all_tasks() == before

    with_client(bench, use)


def test_a_source_may_hold_what_belongs_to_one_task(bench):
    """A TaskGroup, or a timeout, has to be left in the task in which it was entered."""

    async def use(client: AsyncForecastClient) -> None:
        async def source():
            async with asyncio.TaskGroup() as group, asyncio.timeout(50):
                for _ in range(5):
                    yield await group.create_task(asyncio.sleep(0, {}))

        outcomes = [one async for one in client.forecast_many(source(), max_in_flight=2, pred_len=5)]
        assert [one.error.code for one in outcomes] == [ErrorCode.EMPTY_SERIES] * 5

    with_client(bench, use)


@pytest.fixture
def real(settings, redis):
    with client_bench("real", settings, redis) as bench:
        yield AsyncBench(bench)


def test_all_that_wait_share_one_connection_to_listen(real, redis, monkeypatch):
    monkeypatch.setattr("kronos_client.core.result_events.LOOK_INTERVAL_S", 0.1)

    async def use(client: AsyncForecastClient) -> None:
        handles = [await client.submit(CANDLES, pred_len=5) for _ in range(20)]
        waits = [asyncio.create_task(handle.wait(WAIT_S)) for handle in handles]
        while len(redis.pubsub_channels(result_key("*"))) < 20:
            await asyncio.sleep(0.01)
        assert len(redis.client_list(_type="pubsub")) == 1
        await all_end(real, 20)
        await asyncio.gather(*waits)
        while redis.pubsub_channels(result_key("*")):  # those that are done are listened for no longer
            await asyncio.sleep(0.01)

    with_client(real, use)


def test_both_clients_may_be_used_for_one_job(real, settings):
    async def use(client: AsyncForecastClient) -> None:
        await client.submit(CANDLES, pred_len=5, job_id="a")
        real.bench.finish("a")
        with ForecastClient(settings=settings) as other:
            assert await asyncio.to_thread(other.forecast_handle("a").wait, 5) == RESULT

    with_client(real, use)


def test_candles_are_let_go_once_they_are_enqueued(settings):
    alive = weakref.WeakSet()
    client = FakeAsyncForecastClient(FakeForecastClient(settings=settings, hold=True))

    async def source():
        for number in range(5):
            while len(client.fake.jobs) < number:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            gc.collect()
            assert len(alive) <= 1  # the one before may still be referred to
            alive.add(one := WeakCandles(CANDLES))
            yield one
            del one

    async def main() -> None:
        async with client:
            outcomes = [one async for one in client.forecast_many(source(), pred_len=5, timeout_s=1)]
            assert [one.error.code for one in outcomes] == [ErrorCode.TIMEOUT] * 5

    asyncio.run(main())


def test_a_client_that_was_left_open_is_collected_after_its_loop_without_an_error(redis_server):
    async def read(client: AsyncForecastClient) -> None:
        handle = await client.submit(CANDLES, pred_len=5)
        assert await handle.peek() is None

    loop = asyncio.new_event_loop()
    loop.run_until_complete(read(AsyncForecastClient(redis_server.url)))
    loop.close()
    del loop
    gc.collect()  # pytest makes an error of an exception that cannot be raised
