"""Forecasts of many items, by all four clients, with somebody who ends their jobs."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pandas as pd
import polars as pl
import pytest

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.core.many import MAX_TOGETHER
from kronos_client.testing import FakeForecastClient
from kronos_model.bars.synthetic import candles
from tests.kronos_client.client_bench import RESULT, ClientBench, WeakCandles, client_bench
from tests.waiting import WAIT_S, await_true, repeated

CANDLES = candles(seed=1, bars=60).as_dict()
FULL = JobError(ErrorCode.QUEUE_FULL, "full", None, {"retry_after_s": 0.05})
AWAY = JobError(ErrorCode.BROKER_UNREACHABLE, "away")
UNCERTAIN = JobError(ErrorCode.ENQUEUE_UNCERTAIN, "lost", None, {"job_id": "x"})


@contextmanager
def worker_of(bench: ClientBench) -> Iterator[list[int]]:
    """Ends each job as soon as it is seen; gives how many waited at each look."""
    seen: list[int] = []

    def work() -> None:
        if waiting := bench.waiting():
            seen.append(len(waiting))
        for job_id in waiting:
            bench.finish(job_id)

    with repeated(work, every_s=0.005):
        yield seen


@contextmanager
def once_sent(bench: ClientBench, job_ids: list[str], act: Callable[[], None]) -> Iterator[None]:
    """Acts on another thread as soon as all of these jobs wait."""

    def wait_and_act() -> None:
        await_true(lambda: set(job_ids) <= set(bench.waiting()))
        act()

    thread = threading.Thread(target=wait_and_act, daemon=True)
    thread.start()
    yield
    thread.join()


def test_every_item_has_its_outcome_in_order_with_a_bounded_number_at_a_time(bench: ClientBench):
    with worker_of(bench) as seen:
        outcomes = list(bench.client.forecast_many([CANDLES] * 60, pred_len=5, max_in_flight=8))
    assert [(one.index, one.key) for one in outcomes] == [(number, number) for number in range(60)]
    assert all(one.unwrap() == RESULT for one in outcomes)
    assert 1 <= max(seen) <= 8


def test_items_are_taken_only_as_there_is_room(bench: ClientBench):
    taken = []

    def source():
        for number in range(100):
            taken.append(number)
            yield f"name-{number}", CANDLES

    outcomes = bench.client.forecast_many(source(), pred_len=5, max_in_flight=4)
    with worker_of(bench):
        assert next(outcomes).key == "name-0"
        assert len(taken) <= 5
        assert [next(outcomes).key for _ in range(10)] == [f"name-{number}" for number in range(1, 11)]
        assert len(taken) <= 15
        outcomes.close()
    assert len(taken) <= 15


@pytest.mark.at_length
def test_what_the_loop_is_done_with_is_let_go(settings):
    alive = weakref.WeakSet()

    def source():
        for _ in range(30):
            alive.add(one := WeakCandles(CANDLES))
            yield one

    most = 0
    for _ in FakeForecastClient(settings=settings).forecast_many(source(), pred_len=5, max_in_flight=4):
        gc.collect()
        most = max(most, len(alive))
    assert most <= 5


def test_candles_are_let_go_once_they_are_enqueued(settings):
    alive = weakref.WeakSet()
    counted = []

    def source():
        for _ in range(3 * MAX_TOGETHER):
            gc.collect()
            counted.append(len(alive))
            one = WeakCandles(CANDLES)
            alive.add(one)
            yield one
            del one

    held = FakeForecastClient(settings=settings, hold=True)
    outcomes = list(held.forecast_many(source(), pred_len=5, timeout_s=0.05))
    assert [one.error.code for one in outcomes] == [ErrorCode.TIMEOUT] * (3 * MAX_TOGETHER)
    assert max(counted) <= MAX_TOGETHER + 1  # the one that was taken last may still be referred to


def test_as_completed_gives_what_is_there(bench: ClientBench):
    outcomes = bench.client.forecast_many(
        [("a", CANDLES), ("b", CANDLES), ("c", CANDLES)], in_order=False, pred_len=5, job_id_prefix="run"
    )
    given = []
    for job_id in ("run-c", "run-a", "run-b"):
        with once_sent(bench, [job_id], partial(bench.finish, job_id)):
            given.append(next(outcomes).job_id)
    assert given == ["run-c", "run-a", "run-b"]
    assert list(outcomes) == []


def test_in_order_a_later_item_waits_for_an_earlier_one(bench: ClientBench):
    items = [("a", CANDLES), ("b", CANDLES)]
    outcomes = bench.client.forecast_many(items, pred_len=5, job_id_prefix="run")
    first = []
    thread = threading.Thread(target=lambda: first.append(next(outcomes)))
    thread.start()
    await_true(lambda: len(bench.waiting()) == 2)
    bench.finish("run-b")
    bench.fail("run-a", JobError(ErrorCode.DEADLINE, "too late"))
    thread.join()
    assert (first[0].key, first[0].error.code, first[0].result) == ("a", ErrorCode.DEADLINE, None)
    assert [one.key for one in outcomes] == ["b"]


def test_what_befalls_one_item_ends_nothing_else(bench: ClientBench):
    class Odd:
        @property
        def columns(self):
            raise RuntimeError("the file is gone")

    bad = {**CANDLES, "close": [-1.0] * 60}
    with worker_of(bench):
        outcomes = list(bench.client.forecast_many([CANDLES, bad, {}, Odd(), CANDLES], pred_len=5))
    codes = [None if one.error is None else one.error.code for one in outcomes]
    assert codes == [None, "NON_POSITIVE_PRICE", "EMPTY_SERIES", "BAD_TYPE", None]
    assert "the file is gone" in outcomes[3].error.message
    with pytest.raises(JobError, match="NON_POSITIVE_PRICE"):
        outcomes[1].unwrap()


class Frame:
    """Columns by name; it can be hashed, as any object of a class without ``__eq__``."""

    columns = tuple(CANDLES)

    def __getitem__(self, name: str) -> object:
        return CANDLES[name]


NO_KEYS = {
    "a mapping": CANDLES,
    "a DataFrame": pd.DataFrame(CANDLES),
    "another": pl.DataFrame(CANDLES),
    "a frame that can be hashed": Frame(),
    "records": pd.DataFrame(CANDLES).to_dict("records"),
}


@pytest.mark.parametrize("prefix", [None, "run"])
@pytest.mark.parametrize("series", NO_KEYS)
def test_two_series_in_a_tuple_are_no_key_with_candles(settings, series, prefix):
    fake = FakeForecastClient(settings=settings)
    one = NO_KEYS[series]
    items = [(one, one), ("name", one), [one, one]]
    refused, named, several = fake.forecast_many(items, pred_len=5, job_id_prefix=prefix)
    assert (refused.index, refused.key, refused.error.code, refused.error.field) == (
        0,
        0,
        ErrorCode.BAD_TYPE,
        "key",
    )
    assert "as a list" in refused.error.message
    assert (named.key, len(named.result.series)) == ("name", 1)
    assert len(several.result.series) == 2


def test_an_item_may_have_options_of_its_own(settings):
    fake = FakeForecastClient(settings=settings)
    future = [f"2030-01-0{day}" for day in (1, 2, 3)]
    items = [
        ("own", CANDLES, {"future_timestamps": future, "pred_len": None, "seed": 3}),
        ("common", CANDLES),
        ("misspelt", CANDLES, {"pred_length": 3}),
        ("none", CANDLES, None),
    ]
    own, common, *refused = fake.forecast_many(items, pred_len=5, seed=1)
    assert (own.key, own.result.series[0].timestamps, own.result.series[0].seed) == ("own", tuple(future), 3)
    assert (len(common.result.series[0].timestamps), common.result.series[0].seed) == (5, 1)
    assert {(one.error.code, one.error.field) for one in refused} == {(ErrorCode.BAD_TYPE, "options")}
    assert "pred_length" in refused[0].error.message


class NoHash:
    def __hash__(self) -> int:
        raise RuntimeError("no hash")


@pytest.mark.parametrize(
    ("key", "code"), [("\ud800", ErrorCode.BAD_VALUE), (NoHash(), ErrorCode.BAD_TYPE)], ids=["text", "hash"]
)
def test_a_key_that_cannot_be_part_of_an_id_is_its_items_error(bench: ClientBench, key, code):
    with worker_of(bench):
        items = [(key, CANDLES), ("name", CANDLES)]
        refused, fine = bench.client.forecast_many(items, pred_len=5, job_id_prefix="run")
    assert (refused.error.code, fine.job_id, fine.result) == (code, "run-name", RESULT)


@pytest.mark.parametrize("bench", ["fake", "awaited real"], indirect=True)
def test_an_item_that_takes_too_long_is_cancelled_and_the_others_go_on(bench: ClientBench):
    with once_sent(bench, ["run-1"], partial(bench.finish, "run-1")):
        late, fine = bench.client.forecast_many([CANDLES] * 2, pred_len=5, timeout_s=4, job_id_prefix="run")
    assert (late.error.code, fine.result) == (ErrorCode.TIMEOUT, RESULT)
    with pytest.raises(JobError, match="CANCELLED"):
        bench.client.forecast_handle("run-0").wait(WAIT_S)


def test_leaving_early_cancels_what_is_under_way(bench: ClientBench):
    def end_one_of_three() -> None:
        while len(waiting := bench.waiting()) < 3:
            pass
        bench.finish(waiting[0])

    thread = threading.Thread(target=end_one_of_three)
    thread.start()
    outcomes = bench.client.forecast_many([CANDLES] * 3, pred_len=5, in_order=False)
    assert next(outcomes).result == RESULT
    thread.join()
    assert len(bench.waiting()) == 2
    outcomes.close()
    await_true(lambda: bench.waiting() == [])  # the last one sent may be cancelled on a thread


def test_with_ids_of_ones_own_what_was_broken_off_goes_on(bench: ClientBench):
    def run():
        return bench.client.forecast_many([CANDLES] * 3, pred_len=5, job_id_prefix="run")

    outcomes = run()
    with once_sent(bench, ["run-0", "run-1", "run-2"], partial(bench.finish, "run-0")):
        next(outcomes)
    outcomes.close()
    assert sorted(bench.waiting()) == ["run-1", "run-2"]
    bench.finish("run-1")
    bench.finish("run-2")
    assert [one.unwrap() for one in run()] == [RESULT] * 3


def test_results_are_forgotten_where_that_is_wished(bench: ClientBench):
    with worker_of(bench):
        (outcome,) = bench.client.forecast_many([CANDLES], pred_len=5, forget=True)
    assert outcome.result == RESULT
    with pytest.raises(JobError, match="RESULT_EXPIRED"):
        bench.client.forecast_handle(outcome.job_id).wait(WAIT_S)


def test_an_error_of_the_items_own_source_is_not_swallowed(bench: ClientBench):
    def source():
        yield CANDLES
        raise OSError("the file is gone")

    with pytest.raises(OSError, match="the file is gone"):
        list(bench.client.forecast_many(source(), pred_len=5))
    await_true(lambda: bench.waiting() == [])


@pytest.mark.parametrize("error", [FULL, AWAY, UNCERTAIN], ids=lambda error: error.code)
def test_what_is_refused_for_now_is_submitted_again_with_its_id(settings, error):
    fake = FakeForecastClient(settings=settings)
    fake.refuse_next(error, times=3)
    outcomes = list(fake.forecast_many([CANDLES] * 5, pred_len=5, job_id_prefix="run"))
    assert all(one.result for one in outcomes)
    assert sorted(fake.jobs) == [f"run-{number}" for number in range(5)]


def test_what_is_refused_for_too_long_is_an_outcome(settings):
    fake = FakeForecastClient(settings=settings)
    fake.refuse_next(FULL, times=1)
    first, second = fake.forecast_many([CANDLES] * 2, pred_len=5, retry_for_s=0)
    assert (first.error.code, second.error) == (ErrorCode.QUEUE_FULL, None)


def test_a_narrow_queue_takes_any_number_in_the_end(settings, redis):
    narrow = settings.model_copy(update={"max_queue_jobs": 3})
    with client_bench("fake", narrow, redis) as bench, worker_of(bench) as seen:
        outcomes = list(bench.client.forecast_many([CANDLES] * 8, pred_len=5))
    assert [one.index for one in outcomes if one.result] == list(range(8))
    assert max(seen) <= 3


def test_a_connection_that_is_cut_is_made_again(settings, redis):
    with client_bench("real", settings, redis) as bench:
        outcomes = bench.client.forecast_many([CANDLES] * 3, pred_len=5, job_id_prefix="run")

        def cut() -> None:
            redis.client_kill_filter(_type="pubsub")
            for number in range(3):
                bench.finish(f"run-{number}")

        with once_sent(bench, ["run-0", "run-1", "run-2"], cut):
            assert [one.result for one in outcomes] == [RESULT] * 3


def test_few_connections_serve_any_number_of_runs_and_are_given_back(settings, redis):
    """The worker's own come and go by one or two."""
    with client_bench("real", settings, redis) as bench, worker_of(bench):

        def run(number: int) -> None:
            runs = [bench.client.forecast_many([CANDLES] * 3, pred_len=5) for _ in range(number)]
            assert [one.result for run in runs for one in run] == [RESULT] * 3 * number

        run(2)
        before = len(redis.client_list())
        run(6)
        assert len(redis.client_list(_type="pubsub")) <= 1  # its subscriptions may have ended
        assert len(redis.client_list()) <= before + 3
        bench.client.close()
        await_true(lambda: not redis.client_list(_type="pubsub"))  # Redis sees the end a moment later


def test_options_are_checked_before_an_item_is_taken(bench: ClientBench):
    with pytest.raises(TypeError, match="pred_length"):
        bench.client.forecast_many([CANDLES], pred_length=5)
    with pytest.raises(JobError, match="max_in_flight"):
        bench.client.forecast_many([], pred_len=5, max_in_flight=0)
    with pytest.raises(JobError, match=r"give its items\(\)"):
        list(bench.client.forecast_many({"a": CANDLES}, pred_len=5))
    assert bench.waiting() == []
    assert list(bench.client.forecast_many([], pred_len=5)) == []
