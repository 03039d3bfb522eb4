"""A job while its model is being loaded, or when its engine dies. Nothing is loaded here."""

import gc
import threading
import time
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.forecast import ForecastJob
from kronos_client.contract.jobs import Limits, parse_job, prepare
from kronos_client.contract.results import ForecastProgress, series_result
from kronos_model.engine.reports import EngineLoad
from kronos_model.errors import Cancelled
from kronos_model.forecast import Forecast
from tests.kronos_client.contract.contract_jobs import job
from tests.waiting import WAIT_S
from worker.inference import executor
from worker.inference.engine_thread import EngineDied, EngineThread
from worker.inference.executor import DiedInEngine
from worker.inference.job_run import HostedEngine
from worker.inference.model_cache import CacheEntry


class JobContext:
    """A ``JobContext``."""

    def __init__(self) -> None:
        self.wants_no_more = False
        self.progress: list[ForecastProgress] = []

    def is_cancelled(self) -> bool:
        return self.wants_no_more

    def report_progress(self, progress: ForecastProgress) -> None:
        self.progress.append(progress)


@pytest.fixture
def context() -> JobContext:
    return JobContext()


@pytest.fixture
def engine_thread(monkeypatch):
    monkeypatch.setattr(executor, "CHECK_INTERVAL_S", 0.01)
    engine_thread = EngineThread()
    engine_thread.start()
    yield engine_thread
    engine_thread.stop()


def later(action) -> None:
    threading.Timer(0.03, action).start()


def wait(engine_thread, context: JobContext, entry: CacheEntry, deadline: float | None = None):
    return executor.wait_for_model(engine_thread, entry, deadline, context)


def test_it_gets_the_model_after_loading(engine_thread, context):
    entry, served = CacheEntry("b"), object()
    later(lambda: entry.settle(served))
    assert wait(engine_thread, context, entry, time.monotonic() + WAIT_S) is served


def test_it_ends_as_the_load_ended(engine_thread, context):
    entry = CacheEntry("b")
    later(lambda: entry.settle(JobError(ErrorCode.CHECKPOINT_MISSING, "not there", "model")))
    with pytest.raises(JobError) as ended:
        wait(engine_thread, context, entry)
    assert ended.value.code == ErrorCode.CHECKPOINT_MISSING


def test_it_can_be_cancelled(engine_thread, context):
    later(lambda: setattr(context, "wants_no_more", True))
    with pytest.raises(JobError) as ended:
        wait(engine_thread, context, CacheEntry("b"))
    assert ended.value.code == ErrorCode.CANCELLED


def test_it_keeps_its_deadline(engine_thread, context, monkeypatch):
    monkeypatch.setattr(executor, "CHECK_INTERVAL_S", 3600)
    with pytest.raises(JobError) as ended:
        wait(engine_thread, context, CacheEntry("b"), time.monotonic() + 0.02)
    assert (ended.value.code, ended.value.field) == (ErrorCode.DEADLINE, "deadline_s")


def test_it_goes_back_to_the_queue_if_the_engine_dies_meanwhile(engine_thread, context):
    later(engine_thread.stop)
    with pytest.raises(EngineDied) as died:
        wait(engine_thread, context, CacheEntry("b"))
    assert not isinstance(died.value, DiedInEngine)


class RefusingEngine:
    """An engine that takes no series."""

    has_work = False
    load = EngineLoad(0, 0, 1)

    def prepare(self) -> bool:
        return False

    def submit(self, request):
        raise Cancelled("for a reason")

    def cancel(self, generation) -> None:
        """Nothing is there."""


def test_a_failed_job_is_freed_at_once_without_garbage_collection(engine_thread, context):
    """It holds tensors, of which Python's collector does not know how large they are."""
    run = engine_thread.submit(
        "a", [object_with_bars()], engine_thread.add(HostedEngine("m", RefusingEngine()))
    )
    gone = weakref.ref(run)
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(JobError):
            executor.wait_for_run(engine_thread, run, context)
        del run
        engine_thread.submit(
            "b", [object_with_bars()], engine_thread.add(HostedEngine("m", RefusingEngine()))
        ).wait(WAIT_S)
        assert gone() is None
    finally:
        gc.enable()


def object_with_bars() -> SimpleNamespace:
    return SimpleNamespace(horizon=1, sampling=SimpleNamespace(sample_count=1))


class RaisingEngine:
    """An engine that ends its owner's thread with the first series."""

    has_work = False

    def prepare(self) -> bool:
        return False

    def submit(self, request: object) -> None:
        raise SystemExit


def series() -> SimpleNamespace:
    return SimpleNamespace(horizon=1, sampling=SimpleNamespace(sample_count=1))


def test_only_the_job_inside_a_dead_engine_is_suspected(engine_thread, context):
    hosted = HostedEngine("a", RaisingEngine())  # type: ignore[arg-type]
    engine_thread.add(hosted)
    run = engine_thread.submit("job", [series()], hosted)  # type: ignore[list-item]
    with pytest.raises(DiedInEngine):
        executor.wait_for_run(engine_thread, run, context)
    late = engine_thread.submit("late", [series()], hosted)  # type: ignore[list-item]
    with pytest.raises(EngineDied) as died:
        executor.wait_for_run(engine_thread, late, context)
    assert not isinstance(died.value, DiedInEngine)


@pytest.mark.parametrize(
    ("longest", "shortest", "named"),
    [
        (128, None, "128 bars"),
        (30, None, None),
        (60, 31, "31 to 60 bars"),
        (60, 30, None),
        (None, None, None),
    ],
)
def test_a_lookback_unlike_the_trained_ones_gives_a_warning(longest, shortest, named):
    (series,) = prepare(parse_job(job(), Limits()), "an id", Limits())  # of 30 bars
    warnings = executor.with_lookback_warning(series, longest, shortest).warnings
    assert len(warnings) == (named is not None)
    assert all(named in warning and "has 30" in warning for warning in warnings)


@pytest.mark.parametrize(
    ("asked", "trained", "shortest", "read"),
    [
        ("auto", 128, None, 128),
        ("auto", 500, 500, 500),
        ("auto", 448, 32, 448),
        ("auto", 500, 32, 512 - 24),
        ("auto", None, None, 512 - 24),
        (300, 128, None, 300),
        (300, 448, 32, 300),
        (300, None, None, 300),
    ],
)
def test_the_last_bars_are_read_as_the_job_asks_or_the_model_was_trained(asked, trained, shortest, read):
    job = ForecastJob.model_construct(lookback=asked, pred_len=24, series=())
    assert job.num_bars_read(trained, 512, shortest) == read


def test_a_context_that_the_horizon_nearly_fills_leaves_half_of_it_to_the_lookback():
    assert ForecastJob.model_construct(pred_len=500, series=()).num_bars_read(None, 512) == 256


def test_a_job_that_streams_reports_the_first_bars_of_its_result(context):
    asked = parse_job(job(output={"stream": True, "paths": True}, sampling={"sample_count": 4}), Limits())
    (series,) = prepare(asked, "an id", Limits())
    paths = np.random.default_rng(0).normal(100, 9, (4, asked.horizon, 6)).astype(np.float32)
    result = series_result(series, Forecast(paths, series.seed), asked.output)
    generation = SimpleNamespace(paths_so_far=None)
    run = SimpleNamespace(generations=[generation], num_bars_done=0, num_bars_total=9, error=None)
    run.result, run.is_done = lambda: run.generations, True
    num_bars = iter([None, 1, 1, 2])

    def wait(run, timeout_s: float) -> bool:
        if (first := next(num_bars, "end")) == "end":
            return True
        run.num_bars_done += 1
        generation.paths_so_far = first and paths[:, :first]
        return False

    early = executor.EarlyBars([series], asked.output, None)
    executor.wait_for_run(SimpleNamespace(wait=wait), run, context, early)
    assert [progress.as_json().get("series") is None for progress in context.progress] == [True, *[False] * 3]
    shown = [progress.series[0] for progress in context.progress[1:]]
    assert [len(one.timestamps) for one in shown] == [1, 1, 2]
    for one in shown:
        assert one.paths is None
        for name, values in one.mean.items():
            assert values == result.mean[name][: len(values)]
            assert one.quantiles["0.5"][name] == result.quantiles["0.5"][name][: len(values)]
