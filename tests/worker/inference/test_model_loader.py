"""From a name to an engine on its device, within its share of the memory."""

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.support.workload import series_request
from kronos_client.registry.model_registry import ModelRegistry
from kronos_client.registry.registered_model import FILES, RegisteredModel
from kronos_client.settings import ModelSpec
from kronos_model.engine.memory import CPU_SLOTS, memory_of_weights, slot_bytes
from kronos_model.errors import CheckpointError, CheckpointMismatch, KronosError, OutOfMemory
from kronos_model.model import Kronos
from tests.worker.inference.runs import added, ended, result_of, submit
from worker.inference import model_loader
from worker.inference.engine_thread import EngineThread
from worker.inference.model_loader import ModelLoader, max_jobs_on

PARITY = Path(__file__).parents[2] / "data" / "parity" / "a"
CPU, GPU = torch.device("cpu"), torch.device("cuda:0")
MIB = 2**20


@pytest.fixture
def settings(settings):
    model, tokenizer = str(PARITY / "model"), str(PARITY / "tokenizer")
    return settings.model_copy(update={"model": model, "tokenizer": tokenizer, "max_context": 64})


@pytest.fixture
def memory_asked_of(monkeypatch) -> list[torch.device]:
    """A GPU with 1000 MiB free, and each device that was asked for its memory."""
    asked = []

    def describe(device):
        asked.append(device)
        return type("Description", (), {"memory_free_bytes": 1000 * MIB})

    monkeypatch.setattr(model_loader, "describe_device", describe)
    return asked


@pytest.mark.parametrize(
    ("device", "changes", "expected"),
    [
        (CPU, {}, None),
        (CPU, {"memory_mb": 300}, 300 * MIB),
        (CPU, {"memory_mb": 300, "models": "a,b"}, 150 * MIB),
        (CPU, {"memory_mb": 300, "models": "a,b", "max_models": 3}, 100 * MIB),
        (CPU, {"memory_mb": 300, "models": "a,b", "max_models": 1}, 300 * MIB),
        (CPU, {"memory_mb": 300, "model_folder": PARITY, "max_models": 3}, 100 * MIB),
        (GPU, {}, 800 * MIB),
        (GPU, {"models": "a"}, 400 * MIB),
        (GPU, {"models": "a", "memory_mb": 300}, 150 * MIB),
    ],
)
def test_each_model_has_an_equal_share_of_one_budget(settings, memory_asked_of, device, changes, expected):
    assert ModelLoader(settings.model_copy(update=changes), device).share_bytes == expected
    assert (memory_asked_of == [GPU]) == (device == GPU and "memory_mb" not in changes)


def test_the_own_model_is_the_one_that_the_settings_name(settings):
    loaded = ModelLoader(settings, CPU).load()
    assert (loaded.info.id, loaded.info.tokenizer_id) == (settings.model, settings.tokenizer)
    assert (loaded.max_context, loaded.engine.load.slots) == (64, CPU_SLOTS)
    assert loaded.num_parameters == 174_272
    assert loaded.load_s > 0


def test_a_further_model_brings_its_tokenizer_and_has_the_same_bounds(settings):
    loader = ModelLoader(settings.model_copy(update={"max_slots": 5}), CPU)
    loaded = loader.load(ModelSpec("kronos-tiny"))
    assert (loaded.info.id, loaded.info.tokenizer_id) == ("kronos-tiny", "kronos-tiny")
    assert (loaded.max_context, loaded.engine.load.slots) == (64, 5)
    assert loaded.caution.startswith("kronos-tiny was trained on synthetic candles: for trying the service")
    with pytest.raises(CheckpointMismatch):
        loader.load(ModelSpec("kronos-tiny", settings.tokenizer))


@pytest.fixture
def options(monkeypatch) -> list[dict[str, Any]]:
    """Those with which each engine is built; all compute in float32."""
    given, build_engine = [], model_loader.build_engine

    def build(*args, **options):
        given.append(options)
        return build_engine(*args, **options | {"dtype": torch.float32})

    monkeypatch.setattr(model_loader, "build_engine", build)
    return given


def test_the_type_of_the_weights_is_handed_on(settings, options):
    for dtype in ("float32", "bfloat16"):
        ModelLoader(settings.model_copy(update={"dtype": dtype}), CPU).load()
    assert [each["dtype"] for each in options] == [torch.float32, torch.bfloat16]


@pytest.fixture
def engines(monkeypatch) -> list[tuple[str, str | None]]:
    """Kind and reason of the engines that are built in turn; the kinds that were asked for are put last."""
    scripted = []
    build_engine = model_loader.build_engine

    def build(*args, kind, **kwargs):
        engine = build_engine(*args, **kwargs)
        engine.kind, engine.kind_reason = scripted.pop(0)
        scripted.append(kind)
        return engine

    monkeypatch.setattr(model_loader, "build_engine", build)
    return scripted


@pytest.mark.parametrize("asked", ["auto", "torch"])
def test_the_setting_chooses_the_engine_until_a_model_has_one(settings, engines, asked):
    loader = ModelLoader(settings.model_copy(update={"engine": asked}), CPU)
    engines += [("torch", None)]
    assert loader.load().engine_kind == "torch"
    assert engines == [asked]


def test_a_model_has_one_engine_while_its_worker_lives(settings, engines, caplog):
    loader, other = ModelLoader(settings, CPU), ModelSpec("kronos-tiny")
    engines += [("native", None), ("torch", "the self-test failed"), ("native", None), ("torch", None)]
    first, second = loader.load(), loader.load(other)
    again = loader.load(), loader.load(other)
    assert engines == ["auto", "auto", "native", "torch"]
    warning = "Native engine not used: the self-test failed. Falling back to PyTorch."
    expected = [("native", None), ("torch", warning)]
    assert [(one.engine_kind, one.engine_warning) for one in (first, second)] == expected
    assert [(one.engine_kind, one.engine_warning) for one in again] == expected
    logged = [record.getMessage() for record in caplog.records if record.name == model_loader.__name__]
    assert logged == [f"model kronos-tiny: engine torch. {warning}"] * 2


def test_a_model_whose_engine_is_gone_is_not_computed_by_another(settings, engines):
    loader = ModelLoader(settings, CPU)
    engines += [("native", None), ("torch", "Numba is not installed")]
    loader.load()
    with pytest.raises(KronosError, match=r"cannot be used any more: Numba is not installed\."):
        loader.load()


def test_slots_fill_the_share_that_the_weights_leave(settings):
    loader = ModelLoader(settings, CPU)
    pair = model_loader.load_pair(settings.model, settings.tokenizer)
    weights, slot = memory_of_weights(pair.model, pair.tokenizer), slot_bytes(pair.model, 64)
    loader.share_bytes = weights + 5 * slot  # two for paths, two for the prompts that they may share
    assert loader.load().engine.load.slots == 2
    loader.share_bytes = weights + 2 * slot - 1
    with pytest.raises(OutOfMemory):
        loader.load()


@pytest.fixture
def no_room_for_tokenizers(monkeypatch) -> str:
    """Placing the tokenizer fails after the model was placed; returns the warning."""
    warning = "CUDA device 'cuda:0' requested but CUDA cannot hold the KronosTokenizer. Falling back to CPU."

    def move(module, device, **_):
        if type(module).__name__ == "KronosTokenizer" and device.type != "cpu":
            return module, CPU, warning
        return module, device, None

    monkeypatch.setattr(model_loader, "move_to_device", move)
    return warning


def test_an_own_model_that_the_gpu_cannot_hold_is_on_the_cpu_whole(
    settings, memory_asked_of, no_room_for_tokenizers, monkeypatch
):
    moved = []

    def to(model, device):
        moved.append(device)
        return model

    monkeypatch.setattr(Kronos, "to", to)
    loader = ModelLoader(settings, GPU)
    loader.load()
    assert (loader.device, loader.device_warning) == (CPU, no_room_for_tokenizers)
    assert moved[-1] == CPU
    assert loader.share_bytes is None


def test_a_further_model_that_the_gpu_cannot_hold_is_not_loaded(
    settings, memory_asked_of, no_room_for_tokenizers
):
    loader = ModelLoader(settings, GPU)
    with pytest.raises(OutOfMemory, match="cannot hold"):
        loader.load(ModelSpec("kronos-tiny"))
    assert (loader.device, loader.device_warning) == (GPU, None)


def test_the_max_context_needs_no_loading(settings):
    assert ModelLoader(settings, CPU).max_context_of(ModelSpec("NeoQuasar/Kronos-mini")) == 64
    published = ModelLoader(settings.model_copy(update={"max_context": None}), CPU)
    assert published.max_context_of(ModelSpec("NeoQuasar/Kronos-mini")) == 2048
    assert published.max_context_of(ModelSpec("kronos-tiny")) == 512
    assert published.max_context_of(ModelSpec(None)) == 512


def test_reclaiming_calls_no_gpu_on_a_cpu(settings, monkeypatch):
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: pytest.fail("CUDA was called"))
    ModelLoader(settings, CPU).reclaim()


def test_a_removed_model_is_freed(settings):
    loader, engine_thread = ModelLoader(settings, CPU), EngineThread()
    engine_thread.start()
    loaded = loader.load(ModelSpec("kronos-tiny"))
    kept = weakref.ref(loaded.engine.engine)
    model = added(engine_thread, loaded.engine)
    del loaded
    run = submit(engine_thread, "job", [series_request(1, 20, 3)], model)
    ended(engine_thread, run)
    paths = result_of(run)[0].paths
    engine_thread.remove(model)
    loader.reclaim()
    assert kept() is None
    assert paths.shape == (1, 3, 6)
    engine_thread.stop()


@pytest.fixture
def registry(tmp_path) -> ModelRegistry:
    return ModelRegistry(tmp_path / "models")


@pytest.fixture
def registered(registry) -> RegisteredModel:
    return registry.register(PARITY, "desk", job_id="job-1", fingerprint="f", metadata={"max_context": 48})


@pytest.fixture
def registering(settings, registry):
    """Settings of a worker that sees the folder and whose own model they do not name yet."""
    return settings.model_copy(
        update={"model": None, "tokenizer": None, "max_context": None, "model_folder": registry.folder}
    )


@pytest.mark.parametrize(("setting", "expected"), [(None, 48), (32, 32), (64, 48)])
def test_a_registered_model_goes_by_its_name_and_sees_no_more_than_in_training(
    registering, registered, setting, expected
):
    loader = ModelLoader(registering.model_copy(update={"max_context": setting, "max_slots": 5}), CPU)
    loaded = loader.load(registered)
    info = loaded.info.model_dump()
    assert info == {"id": "desk", "revision": "1", "tokenizer_id": "desk", "tokenizer_revision": "1"}
    assert (loaded.name, loaded.registered) == ("desk@1", registered)
    assert loaded.max_context == loader.max_context_of(registered) == expected
    assert (loaded.num_parameters, loaded.engine.load.slots) == (174_272, 5)


@pytest.mark.parametrize(("metadata", "expected"), [({}, 5.0), ({"clip": 3}, 3.0)])
def test_a_registered_model_sees_values_clipped_as_in_training(
    registering, registry, options, metadata, expected
):
    metadata |= {"max_context": 48}
    model = registry.register(PARITY, "desk", job_id="job-1", fingerprint="f", metadata=metadata)
    ModelLoader(registering, CPU).load(model)
    assert options[0]["clip"] == expected


@pytest.mark.parametrize("file", FILES)
def test_a_registered_model_whose_files_were_changed_is_not_loaded(registering, registered, file):
    """They could be loaded still: one weight has the other sign, or a config another end."""
    path = registered.folder / file
    content = bytearray(path.read_bytes())
    path.write_bytes(
        content[:-1] + bytes([content[-1] ^ 0x80]) if path.suffix == ".safetensors" else content + b"\n"
    )
    model_loader.load_pair(registered.folder)
    with pytest.raises(CheckpointError, match=file):
        ModelLoader(registering, CPU).load(registered)


def test_a_short_name_is_that_of_a_published_model_unless_a_registered_one_has_it(
    registering, registry, caplog
):
    own = registering.model_copy(update={"model": "tiny"})
    assert ModelLoader(own, CPU).load().name == "kronos-tiny"
    metadata = {"max_context": 48, "parent": {"model": "kronos-tiny"}}
    registry.register(PARITY, "tiny", job_id="job-1", fingerprint="f", metadata=metadata)
    loaded = ModelLoader(own, CPU).load()
    assert loaded.name == "tiny@1"
    assert loaded.caution.startswith("tiny@1 comes from a model of synthetic candles: for trying")
    assert "tiny is the registered model tiny@1 here, not kronos-tiny." in caplog.messages


@pytest.mark.parametrize("name", ["desk", "desk@1"])
def test_the_own_model_may_be_a_registered_one(registering, registered, name):
    loaded = ModelLoader(registering.model_copy(update={"model": name}), CPU).load()
    assert (loaded.name, loaded.info.id, loaded.info.revision) == ("desk@1", "desk", "1")
    assert loaded.max_context == 48


def test_a_registered_model_goes_before_a_folder_of_its_name_and_behind_a_bundled_one(
    registering, registered, registry, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    for name in ("desk", "other"):
        (tmp_path / name).symlink_to(PARITY)
    (registry.folder / "desk").rename(registry.folder / "kronos-tiny")
    registry.register(PARITY, "desk", job_id="job-2", fingerprint="f", metadata={"max_context": 48})

    def own(name: str):
        return ModelLoader(registering.model_copy(update={"model": name}), CPU).load()

    assert own("desk").registered is not None
    assert own("other").registered is None
    assert (own("kronos-tiny").registered, own("kronos-tiny").info.revision) == (None, None)


@pytest.mark.parametrize(
    "changes", [{"tokenizer": "kronos-tiny"}, {"model_revision": "2"}, {"tokenizer_revision": "2"}]
)
def test_a_registered_model_has_a_tokenizer_and_versions_of_its_own(registering, registered, changes):
    with pytest.raises(CheckpointError, match="KRONOS_TOKENIZER"):
        ModelLoader(registering.model_copy(update={"model": "desk"} | changes), CPU).load()


@pytest.mark.parametrize(
    ("device", "given", "expected"),
    [
        ("cpu", {}, CPU_SLOTS),
        ("cpu", {"max_slots": 8}, 64),
        ("cpu", {"max_slots": 96}, 96),
        ("cuda:0", {}, 512),
        ("cuda:0", {"max_slots": 100}, 100),
        ("cuda:0", {"max_jobs": 3}, 3),
    ],
)
def test_jobs_of_one_path_can_fill_the_slots(settings, device, given, expected):
    assert max_jobs_on(torch.device(device), settings.model_copy(update=given)) == expected
