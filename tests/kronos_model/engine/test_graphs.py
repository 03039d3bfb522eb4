"""Which steps are recorded, when, where and how often, on a fake of CUDA's recording."""

import gc
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pandas as pd
import pytest
import torch

from benchmarks.support.workload import series_request
from kronos_model import KronosPredictor
from kronos_model.bars.synthetic import candles
from kronos_model.engine.decoding import graphs
from kronos_model.engine.decoding.graphs import FACTOR_AFTER_FAILURE, USES_UNTIL_RECORDED, GraphCache
from kronos_model.engine.decoding.static_steps import Shape, StaticSteps, usual_shapes
from kronos_model.engine.engine import Engine
from kronos_model.engine.generation import SamplingParams
from kronos_model.engine.runner import ModelRunner
from tests.kronos_model.engine.conftest import MAX_CONTEXT
from tests.kronos_model.engine.fake_cuda import Trace, fake_device, runner_on
from tests.kronos_model.engine.fake_graphs import NUM_STREAMS, FakeCuda
from tests.waiting import await_true
from tests.worker.inference.runs import added, ended, submit
from worker.inference.engine_thread import EngineThread, ModelEngine

MANY = 10_000


class Recorder:
    """A cache of graphs of steps that only count."""

    def __init__(self, cuda: FakeCuda | None, capacity: int = 4) -> None:
        self.cuda = cuda
        self.launched: list[str] = []  # not recorded
        self.recorded: list[str] = []
        self.cache = GraphCache(self._step, torch.device("cuda", 0), cuda=cuda, capacity=capacity)

    def _step(self, key: str) -> None:
        is_recording = self.cuda is not None and self.cuda.is_recording
        (self.recorded if is_recording else self.launched).append(key)

    def run(self, keys: str) -> None:
        for key in keys:
            self.cache.run(key)

    def record(self) -> None:
        """Use idle time until nothing is left to record."""
        for _ in range(MANY):
            if self.cache.next_due() is None:
                return
            self.cache.record_next()
        pytest.fail("recording has no end")

    def replayed(self, keys: str) -> str:
        """Which of the keys are replayed, if all of them run."""
        before = len(self.launched)
        self.run(keys)
        return "".join(sorted(set(keys) - set(self.launched[before:])))


def test_a_step_is_recorded_when_it_was_used_often_but_never_while_it_runs():
    recorder = Recorder(FakeCuda())
    recorder.run("a" * (USES_UNTIL_RECORDED - 1))
    recorder.record()
    assert recorder.recorded == []
    recorder.run("a" * MANY)
    assert recorder.recorded == []
    recorder.record()
    assert recorder.recorded == ["a"]
    assert recorder.replayed("ab") == "a"


def test_requested_steps_are_recorded_once():
    recorder = Recorder(FakeCuda())
    recorder.cache.request("ab")
    recorder.record()
    recorder.cache.request("abc")
    recorder.record()
    assert recorder.recorded == ["a", "b", "c"]


def test_without_cuda_every_step_runs_unrecorded():
    recorder = Recorder(None)
    recorder.cache.request("a")
    recorder.run("a" * USES_UNTIL_RECORDED)
    recorder.record()
    assert recorder.launched == ["a"] * USES_UNTIL_RECORDED


def test_the_graphs_that_were_used_longest_ago_make_room():
    recorder = Recorder(FakeCuda(), capacity=4)
    recorder.cache.request("abcd")
    recorder.record()
    recorder.run("ba")
    recorder.cache.request("e")
    recorder.cache.record_next()
    assert recorder.replayed("abcde") == "e"  # the others shared a workspace with those that were dropped
    recorder.record()
    assert recorder.replayed("abcde") == "abe"
    recorder.run("c" * USES_UNTIL_RECORDED)
    recorder.record()
    assert recorder.replayed("abcde") == "abce"


def test_no_two_engines_record_on_the_same_stream(monkeypatch):
    """A graph that is dropped would free what the graphs of the other engine use."""
    monkeypatch.setattr(graphs, "NUM_STREAMS", NUM_STREAMS)
    cuda = FakeCuda()
    recorders = [Recorder(cuda) for _ in range(NUM_STREAMS + 1)]
    for recorder in recorders:
        recorder.cache.request("a")
        recorder.record()
    assert [recorder.replayed("a") for recorder in recorders] == ["a"] * NUM_STREAMS + [""]
    del recorder, recorders[1:3]
    gc.collect()
    for _ in range(2):  # they get the streams of those that have gone
        recorders.append(Recorder(cuda))
        recorders[-1].cache.request("a")
        recorders[-1].record()
    assert [recorder.replayed("a") for recorder in recorders] == ["a", "a", "", "a", "a"]


def test_all_recordings_share_a_stream_and_a_pool():
    cuda = FakeCuda()
    made: list[str] = []
    for name in ("Stream", "graph_pool_handle"):
        make = getattr(cuda, name)
        setattr(cuda, name, lambda name=name, make=make: (made.append(name), make())[1])
    recorder = Recorder(cuda)
    recorder.cache.request("abcd")
    recorder.record()
    assert sorted(made) == ["Stream", "graph_pool_handle"]


def test_after_a_failed_recording_steps_go_on_and_are_recorded_later():
    cuda = FakeCuda(failing={1})
    recorder, stream = Recorder(cuda), cuda.current_stream()
    recorder.cache.request("abc")
    recorder.record()
    assert recorder.replayed("abc") == "a"
    assert cuda.current_stream() is stream
    recorder.run("bc" * USES_UNTIL_RECORDED)
    recorder.record()
    assert recorder.replayed("abc") == "a"
    recorder.run("bc" * (FACTOR_AFTER_FAILURE * USES_UNTIL_RECORDED))
    recorder.record()
    assert recorder.replayed("abc") == "abc"


def test_recordings_that_always_fail_are_tried_a_few_times_only():
    cuda = FakeCuda(failing={*range(MANY)})
    recorder = Recorder(cuda)
    recorder.cache.request("abcd")
    for _ in range(MANY):
        recorder.run("abcd")
        recorder.record()
    assert len(cuda.threads) == 4  # at once, and after about 128, 1024 and 8192 uses more
    assert len(recorder.launched) == 4 * MANY + 2 * 4


def test_a_step_that_fails_in_its_recording_does_not_end_the_engine():
    recorder = Recorder(FakeCuda())

    def fail() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    recorder.cuda.on_begin = fail
    recorder.cache.request("a")
    recorder.record()
    assert recorder.replayed("a") == ""


def test_two_engines_do_not_record_at_once():
    cuda, is_first = FakeCuda(), threading.Event()
    recorders = [Recorder(cuda), Recorder(cuda)]
    cuda.on_begin = lambda: is_first.wait(0.05)
    for recorder in recorders:
        recorder.cache.request("ab")
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(Recorder.record, recorders))
    assert len(cuda.threads) == 4


@pytest.mark.parametrize("max_context", [512, 2048])
def test_the_usual_shapes_fit_the_cache(max_context):
    shapes = usual_shapes(512, max_context)
    assert len(set(shapes)) == len(shapes) <= graphs.MAX_GRAPHS


@pytest.fixture
def cuda() -> FakeCuda:
    return FakeCuda()


@pytest.fixture
def engine(pair, cuda) -> Engine:
    def steps(*args: object) -> StaticSteps:
        return StaticSteps(*args, cuda=cuda)

    runner = ModelRunner(*pair, max_context=MAX_CONTEXT, num_slots=4, steps=steps)
    runner.warm_up()
    return Engine(runner)


def test_a_workers_engine_records_on_its_thread_and_only_while_nothing_waits(engine, cuda):
    """Loaded on another thread, as a worker does."""
    engine_thread, num_recorded = EngineThread(), []
    assert cuda.threads == []
    engine_thread.start()
    hosted = added(engine_thread, ModelEngine("model", engine))
    step = engine.step
    engine.step = lambda: (num_recorded.append(len(cuda.threads)), step())[1]
    request = series_request(1, 8, 20, SamplingParams(sample_count=2, seed=1))
    runs = [submit(engine_thread, str(number), [request], hosted) for number in range(3)]
    for run in runs:
        ended(engine_thread, run)
    assert num_recorded[0] == num_recorded[-1]
    await_true(lambda: len(cuda.threads) >= len(usual_shapes(4, MAX_CONTEXT)))
    engine_thread.stop()
    assert {thread.name for thread in cuda.threads} == {"kronos-engine"}


@pytest.fixture
def predictor(pair, engine) -> KronosPredictor:
    """Believes that its engine is on a GPU."""
    predictor = KronosPredictor(*pair, device="cpu", max_context=MAX_CONTEXT)
    predictor.device, predictor._engine = torch.device("cuda", 0), engine
    return predictor


def predict(predictor: KronosPredictor, horizon: int) -> pd.DataFrame:
    series = candles(1, 8 + horizon)
    past, future = series.timestamps[:8], series.timestamps[8:]
    return predictor.predict(pd.DataFrame(series[:8].columns), past, future, horizon, seed=1)


def test_threads_that_share_a_predictor_record_and_replay_on_one_of_its_own(predictor, cuda):
    with ThreadPoolExecutor(3) as threads:
        forecasts = list(threads.map(lambda _: predict(predictor, 4), range(6)))
    assert [len(forecast) for forecast in forecasts] == [4] * 6
    assert len(cuda.threads) == len(usual_shapes(4, MAX_CONTEXT))
    assert len(cuda.replayed_by) == 6 * 4
    assert {thread.name for thread in (*cuda.threads, *cuda.replayed_by)} == {"kronos-predictor_0"}


def test_the_predictors_thread_stops_when_its_caller_is_interrupted(predictor, engine, monkeypatch):
    is_interrupted, num_steps = threading.Event(), []
    step = engine.step
    engine.step = lambda: (num_steps.append(is_interrupted.wait(5)), step())

    def interrupt(future: Future) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Future, "result", interrupt)
        with pytest.raises(KeyboardInterrupt):
            predict(predictor, 20)
    is_interrupted.set()
    assert len(predict(predictor, 4)) == 4
    assert len(num_steps) < 20
    assert not engine.has_work


def test_an_engine_with_work_records_nothing(engine, cuda):
    generation = engine.submit(series_request(1, 8, 4))
    while not generation.done:
        assert not engine.prepare()
        engine.step()
    assert cuda.threads == []
    while engine.prepare():
        pass
    assert len(cuda.threads) == len(usual_shapes(4, MAX_CONTEXT))


def test_what_is_recorded_copies_nothing_and_waits_for_nothing():
    """CUDA records no copy from pageable memory, and no step for which the host waits."""
    traces: list[Trace] = []
    cuda = FakeCuda()
    with fake_device() as fake:
        runner = runner_on(fake, shape="mini", num_slots=16, max_context=200)
        cache = runner._steps._graphs
        cache._cuda, step = cuda, cache._step

        def traced(shape: Shape) -> None:
            with fake.traced() as trace:
                step(shape)
            if cuda.is_recording:
                traces.append(trace)

        cache._step = traced
        runner.warm_up()
        while runner.prepare():
            pass
    assert len(traces) == len(usual_shapes(16, 200)) == 8
    for trace in traces:
        assert trace.num_kernels
        assert not trace.transfers
        assert not trace.waits
