"""The client for asyncio: over the real client on a real Redis, and over the fake."""

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from kronos_client.aio import AsyncForecastClient
from kronos_client.client import ForecastClient
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import result_key
from kronos_client.contract.schemas import example
from kronos_client.core.core import ResultEvents
from kronos_client.core.dispatcher import Dispatcher
from kronos_client.core.stored import JobState
from kronos_client.testing import FakeAsyncForecastClient, FakeForecastClient
from kronos_model.bars.synthetic import candles
from tests.kronos_client.client_bench import RESULT, ClientBench, client_bench
from tests.ports import free_port
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
    monkeypatch.setattr("kronos_client.core.core.LOOK_INTERVAL_S", 1000.0)  # states come by publication alone

    async def use(client: AsyncForecastClient) -> None:
        handles = [await client.submit(CANDLES, pred_len=5) for _ in range(100)]
        waits = [asyncio.create_task(handle.wait(WAIT_S)) for handle in handles]
        await asyncio.sleep(0.3)
        assert threading.active_count() < 40
        await all_end(bench, 100)
        assert await asyncio.gather(*waits) == [RESULT] * 100

    with_client(bench, use)


def test_a_forecast_in_one_go(bench):
    async def use(client: AsyncForecastClient) -> None:
        ending = asyncio.create_task(all_end(bench, 1))
        assert await client.forecast(CANDLES, pred_len=5, timeout_s=WAIT_S, forget=True) == RESULT
        await ending

    with_client(bench, use)


def test_progress_and_states(bench):
    async def use(client: AsyncForecastClient) -> None:
        handle = await client.submit(CANDLES, pred_len=5, job_id="a")
        assert await handle.state() == JobState("PENDING")
        seen = []
        async for state in client.forecast_handle("a").progress():
            seen.append(state)
            if state.name == "PENDING":
                bench.bench.set_progress("a", 1, 5)
            else:
                bench.bench.finish("a")
        assert seen == [JobState("PENDING"), JobState("PROGRESS", 1, 5), JobState("SUCCESS")]
        followed = []
        assert await handle.wait(WAIT_S, on_progress=followed.append) == RESULT
        assert followed == [JobState("SUCCESS")]
        assert await handle.forget()

    with_client(bench, use)


async def code_of(awaitable: Awaitable[object]) -> str:
    with pytest.raises(JobError) as ended:
        await awaitable
    return ended.value.code


def test_errors_are_the_other_clients(bench):
    async def use(client: AsyncForecastClient) -> None:
        assert await code_of(client.submit(CANDLES)) == ErrorCode.MISSING_FIELD
        assert await code_of(client.forecast_handle("nobody's").wait(WAIT_S)) == ErrorCode.LOST
        handle = await client.submit(CANDLES, pred_len=5, job_id="a")
        assert await code_of(client.submit(CANDLES, pred_len=6, job_id="a")) == ErrorCode.ID_CONFLICT
        assert await code_of(handle.wait(0.01)) == ErrorCode.TIMEOUT
        bench.bench.fail("a", JobError(ErrorCode.DEADLINE, "too late"))
        assert await code_of(handle.wait(WAIT_S)) == ErrorCode.DEADLINE

    with_client(bench, use)


def test_what_is_not_done_in_time_or_no_longer_awaited_is_cancelled(bench):
    async def use(client: AsyncForecastClient) -> None:
        assert await code_of(client.forecast(CANDLES, pred_len=5, timeout_s=0.05, job_id="a")) == "TIMEOUT"
        waiting = asyncio.create_task(client.forecast(CANDLES, pred_len=5, job_id="b"))
        while "b" not in bench.bench.waiting():
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        for job_id in ("a", "b"):
            assert await code_of(client.forecast_handle(job_id).wait(WAIT_S)) == ErrorCode.CANCELLED

    with_client(bench, use)


@pytest.mark.parametrize(("job_id", "code"), [(None, ErrorCode.CANCELLED), ("mine", ErrorCode.TIMEOUT)])
def test_a_job_that_is_cancelled_on_its_way_is_not_left_unless_its_id_is_known(
    bench, monkeypatch, job_id, code
):
    async def use(client: AsyncForecastClient) -> None:
        is_begun, may_go_on, sent = threading.Event(), threading.Event(), []

        def slowly(enqueue):
            def slow(dispatcher, jobs):
                is_begun.set()
                assert may_go_on.wait(WAIT_S)
                errors = enqueue(dispatcher, jobs)
                sent.extend(job.id for job, _ in jobs)
                return errors

            return slow

        for kind in Dispatcher.__subclasses__():
            monkeypatch.setattr(kind, "enqueue", slowly(kind.enqueue))
        sending = asyncio.create_task(client.submit(CANDLES, pred_len=5, job_id=job_id))
        assert await asyncio.to_thread(is_begun.wait, WAIT_S)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        may_go_on.set()
        while not sent:
            await asyncio.sleep(0.01)
        timeout_s = 1 if code == ErrorCode.TIMEOUT else WAIT_S
        assert await code_of(client.forecast_handle(sent[0]).wait(timeout_s)) == code

    with_client(bench, use)


def test_who_waits_while_everything_is_lost_is_told(bench):
    async def use(client: AsyncForecastClient) -> None:
        handle = await client.submit(CANDLES, pred_len=5)
        waiting = asyncio.create_task(handle.wait(WAIT_S))
        await asyncio.sleep(0.2)
        bench.bench.lose()
        assert await code_of(waiting) == ErrorCode.LOST

    with_client(bench, use)


def test_finetuning(bench):
    async def use(client: AsyncForecastClient) -> None:
        config = {"data": {"lookback": 30, "pred_len": 5}, "predictor": {"epochs": 2}}
        handle = await client.finetune(config, name="mine", data=CANDLES)
        await handle.cancel()
        assert await code_of(client.finetune_handle(handle.id).wait(WAIT_S)) == ErrorCode.CANCELLED

    with_client(bench, use)


@pytest.mark.parametrize("in_order", [True, False])
def test_many_items_with_a_bounded_number_at_a_time(bench, in_order):
    most = 0

    async def items():
        nonlocal most
        for number in range(40):
            most = max(most, len(bench.bench.waiting()))
            yield f"name-{number}", CANDLES if number != 7 else {}

    async def use(client: AsyncForecastClient) -> None:
        ending = asyncio.create_task(all_end(bench, 39))
        outcomes = [
            one async for one in client.forecast_many(items(), in_order=in_order, max_in_flight=6, pred_len=5)
        ]
        await ending
        keys = [one.key for one in outcomes]
        expected = [f"name-{number}" for number in range(40)]
        assert keys == expected if in_order else sorted(keys) == sorted(expected)
        assert {one.key for one in outcomes if one.error} == {"name-7"}
        assert all(one.result == RESULT for one in outcomes if not one.error)

    with_client(bench, use)
    assert most <= 6


def test_jobs_in_the_contracts_own_form(bench):
    async def use(client: AsyncForecastClient) -> None:
        handle = await client.submit_job(example("forecast-job"), job_id="a")
        await handle.check()
        assert await handle.peek() is None
        bench.bench.finish("a")
        assert await handle.peek() == RESULT
        assert await code_of(client.submit_job({"pred_len": 5})) == ErrorCode.MISSING_FIELD
        assert await code_of(client.forecast_handle("nobody's").check()) == ErrorCode.LOST
        trained = await client.submit_finetune_job(example("finetune-job"), job_id="b")
        await trained.cancel()
        assert await code_of(client.finetune_handle("b").peek()) == ErrorCode.CANCELLED

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
        assert [one.error.code for one in outcomes] == [ErrorCode.MISSING_FIELD] * 5

    with_client(bench, use)


def test_items_are_taken_only_as_there_is_room(bench):
    taken = []

    async def items():
        for number in range(100):
            taken.append(number)
            yield number, CANDLES

    async def use(client: AsyncForecastClient) -> None:
        outcomes = client.forecast_many(items(), max_in_flight=4, pred_len=5)
        ending = asyncio.create_task(all_end(bench, 4))
        for num_given in range(1, 4):
            await anext(outcomes)
            await asyncio.sleep(0.05)
            assert len(taken) <= num_given + 4
        await outcomes.aclose()
        ending.cancel()

    with_client(bench, use)


def test_candles_are_let_go_once_they_are_enqueued(settings):
    class Candles(dict):
        """A mapping that can be referred to weakly."""

        __hash__ = object.__hash__

    alive = weakref.WeakSet()
    client = FakeAsyncForecastClient(FakeForecastClient(settings=settings, hold=True))

    async def source():
        for number in range(5):
            while len(client.fake.jobs) < number:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            gc.collect()
            assert len(alive) <= 1  # the one before may still be referred to
            alive.add(one := Candles(CANDLES))
            yield one
            del one

    async def main() -> None:
        async with client:
            outcomes = [one async for one in client.forecast_many(source(), pred_len=5, timeout_s=1)]
            assert [one.error.code for one in outcomes] == [ErrorCode.TIMEOUT] * 5

    asyncio.run(main())


def test_an_error_of_the_items_own_source_is_not_swallowed(bench):
    async def source():
        yield CANDLES
        raise OSError("the file is gone")

    async def use(client: AsyncForecastClient) -> None:
        with pytest.raises(OSError, match="the file is gone"):
            async for _ in client.forecast_many(source(), pred_len=5):
                pass
        with pytest.raises(JobError, match="max_in_flight"):
            client.forecast_many([], pred_len=5, max_in_flight=0)
        assert [one async for one in client.forecast_many([], pred_len=5)] == []

    with_client(bench, use)


def test_two_series_in_a_tuple_are_their_items_error(bench):
    async def use(client: AsyncForecastClient) -> None:
        (outcome,) = [one async for one in client.forecast_many([(CANDLES, CANDLES)], pred_len=5)]
        assert (outcome.key, outcome.error.code, outcome.error.field) == (0, ErrorCode.BAD_TYPE, "key")

    with_client(bench, use)


def test_leaving_the_loop_cancels_what_is_under_way_unless_the_ids_are_ones_own(bench):
    async def use(client: AsyncForecastClient) -> None:
        for prefix, num_left in ((None, 0), ("run", 2)):
            outcomes = client.forecast_many([{}, CANDLES, CANDLES], pred_len=5, job_id_prefix=prefix)
            assert (await anext(outcomes)).error
            while len(bench.bench.waiting()) < 2:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)
            await outcomes.aclose()
            assert len(bench.bench.waiting()) == num_left

    with_client(bench, use)


def test_an_item_that_takes_too_long_is_an_outcome(bench):
    async def use(client: AsyncForecastClient) -> None:
        outcomes = [one async for one in client.forecast_many([CANDLES], pred_len=5, timeout_s=0.1)]
        assert outcomes[0].error.code == ErrorCode.TIMEOUT
        assert await code_of(client.forecast_handle(outcomes[0].job_id).wait(WAIT_S)) == ErrorCode.CANCELLED

    with_client(bench, use)


@pytest.fixture
def real(settings, redis):
    with client_bench("real", settings, redis) as bench:
        yield AsyncBench(bench)


def test_all_that_wait_share_one_connection_to_listen(real, redis):
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


def test_a_connection_that_is_cut_is_made_again(real, redis):
    async def use(client: AsyncForecastClient) -> None:
        handle = await client.submit(CANDLES, pred_len=5)
        waiting = asyncio.create_task(handle.wait(WAIT_S))
        while not redis.pubsub_channels(result_key("*")):
            await asyncio.sleep(0.01)
        redis.client_kill_filter(_type="pubsub")
        while not redis.pubsub_channels(result_key("*")):
            await asyncio.sleep(0.01)
        real.bench.finish(handle.id)
        assert await waiting == RESULT

    with_client(real, use)


def test_results_of_which_nobody_tells_are_found(real, monkeypatch):
    monkeypatch.setattr("kronos_client.core.core.LOOK_INTERVAL_S", 0.05)

    async def use(client: AsyncForecastClient) -> None:
        handle = await client.submit(CANDLES, pred_len=5)
        real.bench.finish(handle.id)
        monkeypatch.setattr(ResultEvents, "_on_state", _nothing)
        late = await client.submit(CANDLES, pred_len=5)
        waiting = asyncio.create_task(late.wait(WAIT_S))
        await asyncio.sleep(0.2)
        real.bench.finish(late.id)
        assert await waiting == RESULT

    with_client(real, use)


def _nothing(*_: object) -> None:
    """Instead of receiving a published state."""


def test_without_redis_the_error_says_so():
    async def main() -> None:
        async with AsyncForecastClient(f"redis://127.0.0.1:{free_port()}/0") as client:
            assert await code_of(client.submit(CANDLES, pred_len=5)) == ErrorCode.BROKER_UNREACHABLE

    asyncio.run(main())


def test_both_clients_may_be_used_for_one_job(real, settings):
    async def use(client: AsyncForecastClient) -> None:
        await client.submit(CANDLES, pred_len=5, job_id="a")
        real.bench.finish("a")
        with ForecastClient(settings=settings) as other:
            assert await asyncio.to_thread(other.forecast_handle("a").wait, 5) == RESULT

    with_client(real, use)


def test_many_who_look_at_once_share_one_connection_too(real, redis, monkeypatch):
    monkeypatch.setattr("kronos_client.core.core.LOOK_INTERVAL_S", 0.01)

    async def use(client: AsyncForecastClient) -> None:
        handles = [await client.submit(CANDLES, pred_len=5) for _ in range(50)]
        before = {one["id"] for one in redis.client_list()}
        waits = [asyncio.create_task(handle.wait(WAIT_S)) for handle in handles]
        looking: list[int] = []
        while len(looking) < 20 or not max(looking):
            await asyncio.sleep(0.05)
            opened = [one for one in redis.client_list() if one["id"] not in before]
            looking.append(sum(one["cmd"] == "time" for one in opened))
        assert max(looking) == 1
        await all_end(real, 50)
        await asyncio.gather(*waits)

    with_client(real, use)
