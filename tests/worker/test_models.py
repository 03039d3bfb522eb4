"""Which models a worker holds: what jobs may name, one load for all, and who goes when it is full."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from kronos_model.errors import CheckpointUnreachable, OutOfMemory
from tests.worker.fake_engine import MAX_SLOTS, WAIT_S, FakeEngine
from worker.contract.errors import ErrorCode, JobError
from worker.contract.results import ModelInfo
from worker.loading import LoadedModel
from worker.model_names import parse_model_names
from worker.models import ModelPool, Resident
from worker.service import ForecastService

MAX_MODELS = 3


def loaded(name: str) -> LoadedModel:
    info = ModelInfo(id=name, revision="abc", tokenizer_id="t", tokenizer_revision=None)
    return LoadedModel(info, FakeEngine(name), max_context=64, num_parameters=1, load_s=0.0)


class FakeLoader:
    """Loads nothing, and waits while its gate is closed."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.started: list[str] = []
        self.errors: dict[str, Exception] = {}
        self.engines: dict[str, weakref.ref] = {}
        self.alive_at_reclaim: list[list[str]] = []

    def load_further(self, name) -> LoadedModel:
        self.started.append(name.model)
        assert self.gate.wait(WAIT_S)
        if error := self.errors.pop(name.model, None):
            raise error
        model = loaded(name.model)
        self.engines[name.model] = weakref.ref(model.engine)
        return model

    def max_context_of(self, model: str) -> int:
        return len(model)

    def reclaim(self) -> None:
        gc.collect()
        self.alive_at_reclaim.append([name for name, engine in self.engines.items() if engine() is not None])


@pytest.fixture
def service() -> Iterator[ForecastService]:
    service = ForecastService()
    service.start()
    yield service
    service.stop()


@pytest.fixture
def loader() -> Iterator[FakeLoader]:
    loader = FakeLoader()
    yield loader
    loader.gate.set()


@pytest.fixture
def make_pool(service: ForecastService, loader: FakeLoader) -> Callable[[int], ModelPool]:
    def make(max_models: int) -> ModelPool:
        further = parse_model_names("b, c, d, own")
        return ModelPool(service, loader, loaded("own"), further, max_models)

    return make


@pytest.fixture
def pool(make_pool: Callable[[int], ModelPool]) -> ModelPool:
    return make_pool(MAX_MODELS)


def use_once(pool: ModelPool, name: str) -> None:
    with pool.use(name) as resident:
        assert resident.wait(WAIT_S)
        assert resident.served.info.id == name


def ids(pool: ModelPool) -> list[str]:
    return [model["id"] for model in pool.status()]


def refusal(pool: ModelPool, name: str) -> JobError:
    with pytest.raises(JobError) as refused:
        use_once(pool, name)
    return refused.value


@pytest.mark.parametrize("name", [None, "own"])
def test_the_own_model_is_there_from_the_start(pool, loader, name):
    with pool.use(name) as resident:
        assert resident.wait(0)
        assert resident.served is pool.own
    assert loader.started == []


def test_a_model_outside_the_list_is_refused_with_the_list(pool, loader):
    error = refusal(pool, "e")
    assert (error.code, error.field) == (ErrorCode.MODEL_NOT_ALLOWED, "model")
    assert error.details == {"allowed": ["own", "b", "c", "d"]}
    assert "own, b, c, d" in error.message
    assert loader.started == []


def test_many_jobs_wait_for_one_load(pool, loader):
    loader.gate.clear()
    with ExitStack() as jobs:
        waiting = [jobs.enter_context(pool.use("b")) for _ in range(20)]
        assert not any(resident.wait(0) for resident in waiting)
        with pytest.raises(RuntimeError, match="not loaded"):
            _ = waiting[0].served
        loader.gate.set()
        assert all(resident.wait(WAIT_S) for resident in waiting)
        assert {resident.served.info.id for resident in waiting} == {"b"}
    use_once(pool, "b")
    assert loader.started == ["b"]


def test_the_status_lists_every_model_and_how_far_it_is(pool, loader):
    loader.gate.clear()
    with pool.use("b") as resident:
        own, loading = pool.status()
        assert own | {"slots": 0} == {
            "id": "own",
            "revision": "abc",
            "state": "ready",
            "jobs": 0,
            "slots": 0,
            "running": 0,
            "waiting": 0,
        }
        assert own["slots"] == MAX_SLOTS
        assert loading == own | {"id": "b", "revision": None, "state": "loading", "jobs": 1, "slots": 0}
        loader.gate.set()
        assert resident.wait(WAIT_S)
    assert pool.status() == [own, own | {"id": "b"}]


@pytest.mark.parametrize(
    ("error", "code", "part"),
    [
        (CheckpointUnreachable("the hub is silent"), ErrorCode.CHECKPOINT_UNREACHABLE, "the hub is silent"),
        (OutOfMemory("weights need 9 bytes"), ErrorCode.MODEL_CAPACITY, "weights need 9 bytes"),
        (ValueError("a defect"), ErrorCode.INTERNAL, "the worker's log"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_load_that_fails_is_a_coded_error_for_each_job_and_the_next_job_tries_again(
    pool, loader, error, code, part
):
    loader.errors["b"] = error
    loader.gate.clear()
    with pool.use("b") as first, pool.use("b") as second:
        loader.gate.set()
        assert first.wait(WAIT_S)
        assert second.wait(WAIT_S)
        raised = []
        for resident in (first, second):
            with pytest.raises(JobError) as failed:
                _ = resident.served
            assert (failed.value.code, failed.value.field) == (code, "model")
            assert part in failed.value.message
            raised.append(failed.value)
        assert raised[0] is not raised[1]
    assert ids(pool) == ["own"]
    use_once(pool, "b")
    assert loader.started == ["b", "b"]


def test_when_it_is_full_the_model_goes_that_was_used_longest_ago(pool, loader, service):
    for name in ("b", "c", "b", "d"):
        use_once(pool, name)
    assert ids(pool) == ["own", "b", "d"]
    assert loader.started == ["b", "c", "d"]
    assert loader.alive_at_reclaim == [["b"]]
    assert service.load.slots == MAX_MODELS * MAX_SLOTS
    use_once(pool, "c")
    assert ids(pool) == ["own", "d", "c"]


def test_a_model_that_a_job_holds_stays(pool, loader):
    with pool.use("b") as held:
        assert held.wait(WAIT_S)
        for name in ("c", "d", "c"):
            use_once(pool, name)
        assert held.served.hosted.load.slots == MAX_SLOTS
    assert ids(pool) == ["own", "b", "c"]


def test_where_every_place_is_held_the_job_is_told_what_to_do(pool, loader):
    with pool.use("b"), pool.use("c"):
        error = refusal(pool, "d")
        assert (error.code, error.field) == (ErrorCode.MODEL_CAPACITY, "model")
        for part in ("d", "KRONOS_MAX_MODELS", "later", "add workers"):
            assert part in error.message
        use_once(pool, "b")
    use_once(pool, "d")


def test_a_place_for_the_own_model_only_has_room_for_no_other(make_pool):
    pool = make_pool(1)
    assert refusal(pool, "b").code == ErrorCode.MODEL_CAPACITY
    with pool.use(None) as resident:
        assert resident.wait(0)


def test_a_load_that_nobody_waits_for_any_more_gives_its_place_away(pool, loader, service):
    """ "b" is being loaded when its job goes, "c" has not begun."""
    loader.gate.clear()
    for name in ("b", "c"):
        with pool.use(name) as abandoned:
            assert not abandoned.wait(0)
    _expect_started(loader, ["b"])
    with pool.use("d") as first, pool.use("b") as wanted_anew:
        assert not wanted_anew.wait(0)
        loader.gate.set()
        assert first.wait(WAIT_S)
        assert wanted_anew.wait(WAIT_S)
    assert loader.started == ["b", "d", "b"]
    assert ids(pool) == ["own", "d", "b"]
    assert service.load.slots == MAX_MODELS * MAX_SLOTS


def _expect_started(loader: FakeLoader, names: list[str]) -> None:
    deadline = threading.Event()
    for _ in range(100 * WAIT_S):
        if loader.started == names:
            return
        deadline.wait(0.01)
    pytest.fail(f"{loader.started} were loaded, not {names}")


def test_what_a_model_will_see_is_known_before_it_is_loaded(pool, loader):
    assert [pool.max_context_of(name) for name in (None, "own", "b")] == [64, 64, 1]
    assert loader.started == []


def test_a_defect_of_the_loader_does_not_stop_later_loads(pool, loader, monkeypatch):
    def fail() -> None:
        raise RuntimeError("a defect")

    use_once(pool, "b")
    use_once(pool, "c")
    with monkeypatch.context() as broken:
        broken.setattr(loader, "reclaim", fail)
        use_once(pool, "d")
    use_once(pool, "b")


def test_a_resident_wakes_who_waits_in_other_threads():
    resident, seen = Resident("b"), []
    thread = threading.Thread(target=lambda: seen.append(resident.wait(WAIT_S)))
    thread.start()
    resident.settle(JobError(ErrorCode.INTERNAL, "no"))
    thread.join(WAIT_S)
    assert seen == [True]
