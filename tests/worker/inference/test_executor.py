"""A job from ``read_job`` to its result, on a model that loads late and an engine that computes nothing."""

import gc
import threading
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.forecast import ForecastJob
from kronos_client.contract.jobs import Limits, parse_job, prepare
from kronos_client.contract.model_info import ModelInfo
from kronos_client.redis.job_store import Receipt
from kronos_model.engine.generation import GenerationTimings
from kronos_model.errors import Cancelled
from tests.kronos_client.contract.contract_jobs import job
from tests.waiting import WAIT_S, await_true
from tests.worker.inference.fake_engine import FakeEngine
from worker.inference import executor
from worker.inference.engine_thread import EngineDied, EngineThread, ModelEngine
from worker.inference.executor import Computation
from worker.inference.model_cache import CacheEntry
from worker.inference.model_loader import LoadedModel

LIMITS = Limits()
NEW = Receipt(now=0, received_at=0, is_cancelled=False)
INFO = ModelInfo(id="b", revision=None, tokenizer_id="b", tokenizer_revision=None)


class FakeServer:
    """A fake model server, which ``load`` settles."""

    device, device_warning, node = "cpu", None, "worker"

    def __init__(self) -> None:
        self.models = self
        self.entry = CacheEntry("b")
        self.num_users = 0
        self.engine_thread = EngineThread()
        self.engine_thread.start()

    def find(self, name: str | None) -> None:
        """The worker's own."""

    def limits_of(self, model: None) -> Limits:
        return LIMITS

    def calibration_for(self, job: ForecastJob, model: None) -> None:
        """None."""

    def hold(self, model: None) -> CacheEntry:
        self.num_users += 1
        return self.entry

    def release(self, entry: CacheEntry) -> None:
        self.num_users -= 1

    def load(self, engine: object, engine_thread: object = None, **engine_facts: Any) -> None:
        model = ModelEngine("b", engine)
        self.engine_thread.add(model)
        self.engine_thread = engine_thread or self.engine_thread
        served = LoadedModel(INFO, model, 64, num_parameters=1, load_s=0.0, **engine_facts)
        self.entry.loading.set_result(served)

    def computation(self, job_id: str = "a", receipt: Receipt = NEW, on_change=lambda: None, **changes):
        given = (job_id, parse_job(job(**changes), LIMITS), receipt, "cpu", "normal", on_change)
        return Computation(self, *given, lambda runs: self.engine_thread.submit(runs))


@pytest.fixture
def server():
    server = FakeServer()
    thread = server.engine_thread
    yield server
    thread.stop()


def ended(computation: Computation) -> Computation:
    await_true(computation.advance, "the end of the job")
    return computation


def code_of(call) -> ErrorCode:
    with pytest.raises(JobError) as error:
        call()
    return error.value.code


def test_it_computes_once_the_model_is_loaded(server):
    changes = threading.Semaphore(0)
    computation = server.computation(on_change=changes.release)
    assert not computation.advance()
    assert computation.new_progress() is None
    engine = FakeEngine()
    engine.gate.clear()
    server.load(engine)
    assert changes.acquire(timeout=WAIT_S)
    assert not computation.advance()
    engine.in_step.wait(WAIT_S)
    assert not computation.advance()
    engine.gate.set()
    assert changes.acquire(timeout=WAIT_S)
    assert computation.advance()
    assert (computation.new_progress().bars_done, computation.new_progress()) == (5, None)
    assert server.num_users == 1
    computation.close()
    assert server.num_users == 0


def test_it_ends_as_the_load_ended(server):
    computation = server.computation()
    server.entry.loading.set_result(JobError(ErrorCode.CHECKPOINT_MISSING, "not there", "model"))
    assert code_of(computation.advance) == ErrorCode.CHECKPOINT_MISSING


def test_it_keeps_its_deadline_while_the_model_is_loaded(server):
    assert code_of(lambda: ended(server.computation(deadline_s=0.02))) == ErrorCode.DEADLINE
    late = Receipt(now=9, received_at=0, is_cancelled=False)
    assert code_of(lambda: server.computation(receipt=late, deadline_s=8)) == ErrorCode.DEADLINE
    assert not server.computation(receipt=late, deadline_s=99).advance()


def test_it_can_be_cancelled_before_and_in_the_engine(server):
    cancelled = Receipt(now=0, received_at=0, is_cancelled=True)
    assert code_of(lambda: server.computation(receipt=cancelled)) == ErrorCode.CANCELLED
    assert code_of(server.computation().cancel) == ErrorCode.CANCELLED
    engine = FakeEngine()
    engine.gate.clear()
    server.load(engine)
    computations = [server.computation(job_id) for job_id in "ab"]
    assert not any(computation.advance() for computation in computations)
    computations[0].cancel()
    computations[1].close()
    engine.gate.set()
    for computation in computations:
        assert code_of(ended(computation).result) == ErrorCode.CANCELLED


def test_it_goes_elsewhere_if_the_engine_dies_while_the_model_is_loaded(server):
    computation = server.computation()
    server.engine_thread.stop()
    with pytest.raises(EngineDied) as died:
        computation.advance()
    assert not died.value.was_inside


class EndingEngine(FakeEngine):
    """Raises this with the first series: SystemExit ends its thread."""

    def __init__(self, end: BaseException) -> None:
        super().__init__()
        self.end = end

    def submit(self, request: object) -> None:
        raise self.end


def test_only_the_job_inside_a_dead_engine_is_suspected(server):
    server.load(EndingEngine(SystemExit()))
    with pytest.raises(EngineDied) as died:
        ended(server.computation()).result()
    assert died.value.was_inside
    with pytest.raises(EngineDied) as died:
        ended(server.computation("late")).result()
    assert not died.value.was_inside


def test_a_failed_job_is_freed_at_once_without_garbage_collection(server):
    """It holds tensors, and Python's collector does not know how large they are."""
    server.load(EndingEngine(Cancelled("for a reason")))
    first, second = server.computation(), server.computation("b")
    gone = weakref.ref(first)
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(JobError, match="for a reason"):
            ended(first).result()
        first.close()
        del first
        ended(second)  # the engines' thread has left the first
        assert gone() is None
    finally:
        gc.enable()


class StreamingEngines:
    """Fake engines' thread: in each wait it has a bar more of all paths of its one series."""

    is_alive = True

    def __init__(self, paths: np.ndarray) -> None:
        timings = GenerationTimings()
        self.generation = SimpleNamespace(paths=paths, paths_so_far=None, timings=timings, num_bars_done=0)

    def submit(self, runs) -> None:
        (run,) = runs
        run.generations.append(self.generation)

    def has_ended(self, run) -> bool:
        generation = self.generation
        generation.num_bars_done += 1
        generation.paths_so_far = generation.paths[:, : generation.num_bars_done]
        run.is_done = generation.num_bars_done == 5
        return run.is_done


def test_a_job_that_streams_has_its_first_bars_before_its_result(server):
    paths = np.random.default_rng(0).normal(100, 9, (4, 5, 6)).astype(np.float32)
    server.load(FakeEngine(), StreamingEngines(paths))
    asked = {"output": {"stream": True, "paths": True}, "sampling": {"sample_count": 4}}
    computation, shown = server.computation(**asked), []
    while not computation.advance():
        if (progress := computation.new_progress()) is not None:
            shown.append(progress.series[0])
    (result,) = computation.result().model_dump(mode="json")["series"]
    assert [len(one.timestamps) for one in shown] == [1, 2, 3, 4]
    for one in shown:
        assert one.paths is None
        for name, values in one.mean.items():
            assert values == tuple(result["mean"][name][: len(values)])
            assert one.quantiles["0.5"][name] == tuple(result["quantiles"]["0.5"][name][: len(values)])


@pytest.mark.parametrize(
    ("facts", "warnings"),
    [
        ({"engine_kind": "native"}, ()),
        ({"engine_kind": "torch"}, ()),
        ({"engine_kind": "torch", "engine_warning": "no Numba"}, ("no Numba",)),
        ({"engine_kind": "native", "caution": "for trying"}, ("for trying",)),
    ],
)
def test_a_result_names_its_engine_and_warns_of_a_fallback_and_a_model_for_trying(server, facts, warnings):
    paths = np.full((30, 5, 6), 100, np.float32)
    server.load(FakeEngine(), StreamingEngines(paths), **facts)
    computation = ended(server.computation(sampling={"sample_count": 30}))
    result = computation.result()
    assert (result.engine, result.warnings) == (facts["engine_kind"], warnings)


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
