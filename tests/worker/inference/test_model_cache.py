"""The models of a worker: names in jobs, one load for all, and which model is dropped."""

import gc
import shutil
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.forecast import ForecastJob, Output
from kronos_client.contract.model_info import ModelInfo
from kronos_client.registry.model_registry import ModelRegistry
from kronos_client.registry.registered_model import FILES, RegisteredModel
from kronos_model.errors import CheckpointError, CheckpointUnreachable, OutOfMemory
from tests.kronos_client.contract.test_calibration import FIELDS
from tests.waiting import WAIT_S, await_true
from tests.worker.inference.fake_engine import MAX_SLOTS, FakeEngine
from tests.worker.inference.runs import load_of
from worker.inference.engine_thread import EngineThread, ModelEngine
from worker.inference.model_cache import CacheEntry, ModelCache
from worker.inference.model_loader import LoadedModel
from worker.settings import WorkerSettings

MAX_MODELS = 3


def loaded(name: str, registered: RegisteredModel | None = None) -> LoadedModel:
    info = ModelInfo(id=name, revision="abc", tokenizer_id="t", tokenizer_revision=None)
    hosted = ModelEngine(registered.reference if registered else name, FakeEngine(name))
    return LoadedModel(info, hosted, 64, num_parameters=1, load_s=0.0, registered=registered)


def naming(models: str, max_models: int = MAX_MODELS) -> WorkerSettings:
    """Settings of a worker whose jobs may name these models."""
    return WorkerSettings.model_construct(models=models, max_models=max_models)


class FakeLoader:
    """Loads nothing, and waits while its gate is closed."""

    def __init__(self, registry: ModelRegistry | None = None) -> None:
        self.registry = registry
        self.gate = threading.Event()
        self.gate.set()
        self.started: list[str] = []
        self.errors: dict[str, Exception] = {}
        self.engines: dict[str, weakref.ref] = {}
        self.alive_at_reclaim: list[list[str]] = []
        self.has_lost_device = False

    def load(self, wanted) -> LoadedModel:
        registered = wanted if isinstance(wanted, RegisteredModel) else None
        name = registered.reference if registered else wanted.model
        self.started.append(name)
        assert self.gate.wait(WAIT_S)
        if error := self.errors.pop(name, None):
            raise error
        model = loaded(name, registered)
        self.engines[name] = weakref.ref(model.engine.engine)
        return model

    def max_context_of(self, wanted) -> int:
        if isinstance(wanted, RegisteredModel):
            return wanted.metadata.max_context
        if wanted.model == "d":
            raise CheckpointError("its metadata.json is damaged")
        return len(wanted.model)

    def is_device_lost(self) -> bool:
        return self.has_lost_device

    def reclaim(self) -> None:
        gc.collect()
        self.alive_at_reclaim.append([name for name, engine in self.engines.items() if engine() is not None])


@pytest.fixture
def engine_thread() -> Iterator[EngineThread]:
    engine_thread = EngineThread()
    engine_thread.start()
    yield engine_thread
    engine_thread.stop()


@pytest.fixture
def loader() -> Iterator[FakeLoader]:
    loader = FakeLoader()
    yield loader
    loader.gate.set()


@pytest.fixture
def pool(engine_thread: EngineThread, loader: FakeLoader) -> ModelCache:
    loader.registry = None
    return ModelCache(engine_thread, loader, loaded("own"), naming("b, c, d, own"))


@contextmanager
def use(pool: ModelCache, name: str | None) -> Iterator[CacheEntry]:
    """Use a model as a job does."""
    entry = pool.hold(pool.find(name))
    yield entry
    pool.release(entry)


def settles(entry: CacheEntry) -> bool:
    """Whether the entry has its model, or an error, in time."""
    return bool(wait([entry.loading], WAIT_S).done)


def use_once(pool: ModelCache, name: str) -> None:
    with use(pool, name) as entry:
        assert settles(entry)
        assert entry.served.info.id == name


def ids(pool: ModelCache) -> list[str]:
    return [model.id for model in pool.status()]


def refusal(pool: ModelCache, name: str) -> JobError:
    with pytest.raises(JobError) as refused:
        use_once(pool, name)
    return refused.value


@pytest.mark.parametrize("name", [None, "own"])
def test_the_own_model_is_there_from_the_start(pool, loader, name):
    with use(pool, name) as entry:
        assert entry.loading.done()
        assert entry.served is pool.own
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
        waiting = [jobs.enter_context(use(pool, "b")) for _ in range(20)]
        assert not any(entry.loading.done() for entry in waiting)
        loader.gate.set()
        assert all(settles(entry) for entry in waiting)
        assert {entry.served.info.id for entry in waiting} == {"b"}
    use_once(pool, "b")
    assert loader.started == ["b"]


def test_the_status_lists_every_model_and_how_far_it_is(pool, loader):
    loader.gate.clear()
    with use(pool, "b") as entry:
        own, loading = (model.as_json() for model in pool.status())
        assert own | {"slots": 0} == {
            "id": "own",
            "revision": "abc",
            "state": "ready",
            "max_context": 64,
            "lookback": None,
            "min_lookback": None,
            "calibration": None,
            "engine": "torch",
            "engine_warning": None,
            "jobs": 0,
            "slots": 0,
            "running": 0,
            "waiting": 0,
        }
        assert own["slots"] == MAX_SLOTS
        unknown = dict.fromkeys(("revision", "max_context", "lookback", "min_lookback", "engine"))
        assert loading == own | unknown | {"id": "b", "state": "loading", "jobs": 1, "slots": 0}
        loader.gate.set()
        assert settles(entry)
    assert [model.as_json() for model in pool.status()] == [own, own | {"id": "b"}]


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
    with use(pool, "b") as first, use(pool, "b") as second:
        loader.gate.set()
        assert settles(first)
        assert settles(second)
        raised = []
        for entry in (first, second):
            with pytest.raises(JobError) as failed:
                _ = entry.served
            assert (failed.value.code, failed.value.field) == (code, "model")
            assert part in failed.value.message
            raised.append(failed.value)
        assert raised[0] is not raised[1]
    assert ids(pool) == ["own"]
    use_once(pool, "b")
    assert loader.started == ["b", "b"]


def test_a_device_that_fails_during_a_load_ends_the_engines_and_not_the_job(pool, loader, engine_thread):
    loader.errors["b"] = RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED")
    loader.has_lost_device = True
    with use(pool, "b") as entry:
        await_true(lambda: not engine_thread.is_alive)
        assert not entry.loading.done()  # the job goes back, because the engines' thread is dead


def test_a_full_cache_drops_the_model_that_was_used_longest_ago(pool, loader, engine_thread):
    for name in ("b", "c", "b", "d"):
        use_once(pool, name)
    assert ids(pool) == ["own", "b", "d"]
    assert loader.started == ["b", "c", "d"]
    assert loader.alive_at_reclaim == [["b"]]
    assert load_of(engine_thread).slots == MAX_MODELS * MAX_SLOTS
    use_once(pool, "c")
    assert ids(pool) == ["own", "d", "c"]


def test_a_model_that_a_job_holds_stays(pool, loader):
    with use(pool, "b") as held:
        assert settles(held)
        for name in ("c", "d", "c"):
            use_once(pool, name)
        assert held.served.engine.load.slots == MAX_SLOTS
    assert ids(pool) == ["own", "b", "c"]


def test_if_every_place_is_held_the_error_says_what_to_do(pool, loader):
    with use(pool, "b"), use(pool, "c"):
        error = refusal(pool, "d")
        assert (error.code, error.field) == (ErrorCode.MODEL_CAPACITY, "model")
        for part in ("d", "KRONOS_MAX_MODELS", "later", "add workers"):
            assert part in error.message
        use_once(pool, "b")
    use_once(pool, "d")


def test_a_load_that_no_job_waits_for_gives_its_place_away(pool, loader, engine_thread):
    """ "b" is being loaded when its job goes, "c" has not begun."""
    loader.gate.clear()
    for name in ("b", "c"):
        with use(pool, name) as abandoned:
            assert not abandoned.loading.done()
    await_true(lambda: loader.started == ["b"])
    with use(pool, "d") as first, use(pool, "b") as wanted_anew:
        assert not wanted_anew.loading.done()
        loader.gate.set()
        assert settles(first)
        assert settles(wanted_anew)
    assert loader.started == ["b", "d", "b"]
    assert ids(pool) == ["own", "d", "b"]
    assert load_of(engine_thread).slots == MAX_MODELS * MAX_SLOTS


def test_the_max_context_is_known_before_loading(pool, loader):
    assert [pool.limits_of(pool.find(name)).max_pred_len for name in (None, "own", "b")] == [64, 64, 1]
    assert loader.started == []


def test_a_model_whose_metadata_is_damaged_fails_no_job_but_its_own(pool):
    with pytest.raises(JobError, match=r"metadata\.json is damaged") as failed:
        pool.limits_of(pool.find("d"))
    assert (failed.value.code, failed.value.field) == (ErrorCode.CHECKPOINT_INVALID, "model")


def test_a_defect_of_the_loader_does_not_stop_later_loads(pool, loader, monkeypatch):
    def fail() -> None:
        raise RuntimeError("a defect")

    use_once(pool, "b")
    use_once(pool, "c")
    with monkeypatch.context() as broken:
        broken.setattr(loader, "reclaim", fail)
        use_once(pool, "d")
    use_once(pool, "b")


@pytest.fixture
def registry(tmp_path: Path) -> ModelRegistry:
    return ModelRegistry(tmp_path / "models")


@pytest.fixture
def register(registry: ModelRegistry, tmp_path: Path) -> Callable[..., RegisteredModel]:
    for file in FILES:
        (tmp_path / "checkpoint" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "checkpoint" / file).write_text(file)

    def register(name: str, job_id: str, max_context: int = 32, **further: object) -> RegisteredModel:
        metadata = {"max_context": max_context, **further}
        return registry.register(
            tmp_path / "checkpoint", name, job_id=job_id, fingerprint="f", metadata=metadata
        )

    return register


@pytest.fixture
def registering(engine_thread, loader, registry) -> ModelCache:
    """A pool that sees the folder of registered models, and two further ones."""
    loader.registry = registry
    return ModelCache(engine_thread, loader, loaded("own"), naming("b, d"))


def named(pool: ModelCache, name: str) -> str:
    """The model that serves a job with this name."""
    with use(pool, name) as entry:
        assert settles(entry)
        return entry.served.engine.model_id


def test_a_name_is_the_newest_version_as_of_when_the_job_comes(registering, register, loader):
    assert refusal(registering, "desk").code == ErrorCode.MODEL_NOT_ALLOWED
    register("desk", "job-1")
    assert named(registering, "desk") == "desk@1"
    with use(registering, "desk") as older:
        register("desk", "job-2")
        assert named(registering, "desk") == "desk@2"
        assert named(registering, "desk@1") == "desk@1"
        assert ids(registering) == ["own", "desk@1", "desk@2"]
        assert older.served.engine.load.slots == MAX_SLOTS
    assert loader.started == ["desk@1", "desk@2"]
    assert refusal(registering, "desk@3").code == ErrorCode.MODEL_NOT_ALLOWED


def test_a_calibration_is_announced_and_is_that_of_the_version_that_a_job_names(registering, register):
    register("desk", "job-1", calibration=FIELDS | {"fitted_at": "2026-01-01T00:00:00Z"})
    asking = ForecastJob.model_construct(output=Output(calibrated=True))
    for name in (None, "b"):
        with pytest.raises(JobError, match="NOT_CALIBRATED: the model"):
            registering.calibration_for(asking, registering.find(name))
    assert named(registering, "desk") == "desk@1"
    calibrations = {one.id: one.calibration for one in registering.status()}
    assert calibrations["own"] is None
    assert calibrations["desk@1"].num_windows == FIELDS["num_windows"]


def test_what_a_recorded_backtest_held_is_that_of_the_version(registering, register):
    for job_id, held in (("job-1", 0.71), ("job-2", 0.84)):
        scores = {"coverage": {"0.8": held}}
        register("desk", job_id, evaluation={"models": {"any": {"scores": scores}, "start": {}}})
    register("bare", "job-3", evaluation=None)
    held = {}
    for name in (None, "desk@1", "desk@2", "bare"):
        with use(registering, name) as entry:
            assert settles(entry)
            held[name] = registering.recorded_coverage(entry.served.info)
    assert held == {None: None, "desk@1": 0.71, "desk@2": 0.84, "bare": None}


def test_the_refusal_says_where_the_registered_models_are_listed(registering, pool):
    error = refusal(registering, "e")
    assert error.details == {"allowed": ["own", "b", "d"]}
    assert "own, b, d" in error.message
    assert "kronos models" in error.message
    assert "kronos models" not in refusal(pool, "e").message


def test_a_short_name_is_the_full_one_unless_a_registered_model_has_it(registering, register, pool):
    registering._allowed = naming("small").further_models
    assert named(registering, "small") == "NeoQuasar/Kronos-small"
    register("small", "job-1")
    assert named(registering, "small") == "small@1"
    assert named(registering, "NeoQuasar/Kronos-small") == "NeoQuasar/Kronos-small"
    assert refusal(registering, "mini").code == ErrorCode.MODEL_NOT_ALLOWED


def test_a_misspelled_name_has_its_nearest(registering, register):
    register("crypto-hourly", "job-1")
    assert refusal(registering, "crypto-hurly").message.endswith("; did you mean crypto-hourly?")
    assert "did you mean" not in refusal(registering, "qqqq").message


@pytest.mark.parametrize("name", ["../desk", "/etc", "desk/../desk", "desk@../1", "", ".", "desk@0"])
def test_a_model_name_in_a_job_never_becomes_a_path(registering, register, loader, name, monkeypatch):
    register("desk", "job-1")
    monkeypatch.setattr(Path, "iterdir", lambda path: pytest.fail(f"{path} was read"))
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail(f"{path} was read"))
    assert refusal(registering, name).code == ErrorCode.MODEL_NOT_ALLOWED
    assert loader.started == []


def test_models_that_the_operator_lists_come_before_registered_ones(registering, register, loader):
    """A user who may finetune cannot replace an allowed model by their own."""
    for name in ("own", "b"):
        register(name, f"job-{name}")
        assert named(registering, name) == name
    assert loader.started == ["b"]


def test_a_model_that_was_deleted_serves_on_until_it_is_dropped(registering, register, registry, loader):
    for number in (1, 2):
        register("desk", f"job-{number}")
        assert named(registering, "desk") == f"desk@{number}"
    shutil.rmtree(registry.folder / "desk")
    assert [named(registering, name) for name in ("desk", "desk@1", "desk@2")] == [
        "desk@2",
        "desk@1",
        "desk@2",
    ]
    assert refusal(registering, "desk@3").code == ErrorCode.MODEL_NOT_ALLOWED
    for other in ("b", "d"):
        assert named(registering, other) == other
    assert refusal(registering, "desk").code == ErrorCode.MODEL_NOT_ALLOWED
    assert loader.started == ["desk@1", "desk@2", "b", "d"]


def test_a_version_that_was_registered_again_is_loaded_again(registering, register, registry, loader):
    register("desk", "job-1")
    assert named(registering, "desk@1") == "desk@1"
    shutil.rmtree(registry.folder / "desk")
    register("desk", "job-2")
    assert named(registering, "desk@1") == "desk@1"
    assert loader.started == ["desk@1", "desk@1"]


def test_a_damaged_model_is_a_coded_error_and_leaves_the_others_alone(registering, register):
    register("other", "job-1")
    (register("desk", "job-2").folder / "metadata.json").write_text("{")
    error = refusal(registering, "desk")
    assert (error.code, error.field) == (ErrorCode.CHECKPOINT_INVALID, "model")
    assert named(registering, "other") == "other@1"


def test_the_workers_own_may_be_registered_and_is_not_loaded_twice(engine_thread, loader, registry, register):
    own = register("desk", "job-1")
    loader.registry = registry
    pool = ModelCache(engine_thread, loader, loaded("desk", own), naming(""))
    assert pool.names == ["desk@1"]
    assert [named(pool, name) for name in ("desk@1", "desk")] == ["desk@1", "desk@1"]
    assert loader.started == []
    register("desk", "job-2")
    assert named(pool, "desk") == "desk@2"
    assert pool.find(None) is None
    shutil.rmtree(registry.folder / "desk")
    assert named(pool, "desk@1") == "desk@1"
    assert loader.started == ["desk@2"]
