"""From a name to an engine on its device, within its share of the memory."""

import weakref
from pathlib import Path

import pytest
import torch

from benchmarks.support.workload import series_request
from kronos_model.engine.build import memory_of_weights, slot_bytes
from kronos_model.errors import CheckpointMismatch, OutOfMemory
from kronos_model.model import Kronos
from worker import loading
from worker.loading import ModelLoader, num_models
from worker.model_names import ModelName
from worker.service import ForecastService

PARITY = Path(__file__).parents[1] / "data" / "parity" / "a"
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

    monkeypatch.setattr(loading, "describe_device", describe)
    return asked


@pytest.mark.parametrize(
    ("device", "changes", "expected"),
    [
        (CPU, {}, None),
        (CPU, {"memory_mb": 300}, 300 * MIB),
        (CPU, {"memory_mb": 300, "models": "a,b"}, 150 * MIB),
        (CPU, {"memory_mb": 300, "models": "a,b", "max_models": 3}, 100 * MIB),
        (CPU, {"memory_mb": 300, "models": "a,b", "max_models": 1}, 300 * MIB),
        (GPU, {}, 800 * MIB),
        (GPU, {"models": "a"}, 400 * MIB),
        (GPU, {"models": "a", "memory_mb": 300}, 150 * MIB),
    ],
)
def test_each_model_has_an_equal_share_of_one_budget(settings, memory_asked_of, device, changes, expected):
    assert ModelLoader(settings.model_copy(update=changes), device).share_bytes == expected
    assert (memory_asked_of == [GPU]) == (device == GPU and "memory_mb" not in changes)


def test_no_more_models_are_counted_than_jobs_may_name(settings):
    assert num_models(settings) == 1
    assert num_models(settings.model_copy(update={"models": "a"})) == 2
    assert num_models(settings.model_copy(update={"models": "a,b,c"})) == 2


def test_the_own_model_is_the_one_that_the_settings_name(settings):
    loaded = ModelLoader(settings, CPU).load_own()
    assert (loaded.info.id, loaded.info.tokenizer_id) == (settings.model, settings.tokenizer)
    assert (loaded.max_context, loaded.engine.load.slots) == (64, 64)
    assert loaded.num_parameters == 174_272
    assert loaded.load_s > 0


def test_a_further_model_brings_its_tokenizer_and_has_the_same_bounds(settings):
    loader = ModelLoader(settings.model_copy(update={"max_slots": 5}), CPU)
    loaded = loader.load_further(ModelName("kronos-tiny"))
    assert (loaded.info.id, loaded.info.tokenizer_id) == ("kronos-tiny", "kronos-tiny")
    assert (loaded.max_context, loaded.engine.load.slots) == (64, 5)
    with pytest.raises(CheckpointMismatch):
        loader.load_further(ModelName("kronos-tiny", settings.tokenizer))


def test_the_type_of_the_weights_is_handed_on(settings, monkeypatch):
    asked = []
    build_engine = loading.build_engine

    def build(*args, dtype, **kwargs):
        asked.append(dtype)
        return build_engine(*args, **kwargs)

    monkeypatch.setattr(loading, "build_engine", build)
    for dtype in ("float32", "bfloat16"):
        ModelLoader(settings.model_copy(update={"dtype": dtype}), CPU).load_own()
    assert asked == [torch.float32, torch.bfloat16]


def test_slots_are_as_many_as_the_share_holds_beside_the_weights(settings):
    loader = ModelLoader(settings, CPU)
    pair = loading.load_pair(settings.model, settings.tokenizer)
    weights, slot = memory_of_weights(pair.model, pair.tokenizer), slot_bytes(pair.model, 64)
    loader.share_bytes = weights + 5 * slot  # three for paths, two for the prompts that they may share
    assert loader.load_own().engine.load.slots == 3
    loader.share_bytes = weights + 2 * slot - 1
    with pytest.raises(OutOfMemory):
        loader.load_own()


@pytest.fixture
def no_room_for_tokenizers(monkeypatch) -> str:
    """Placing the tokenizer fails after the model was placed; returns the warning."""
    warning = "CUDA device 'cuda:0' requested but CUDA cannot hold the KronosTokenizer. Falling back to CPU."

    def move(module, device, **_):
        if type(module).__name__ == "KronosTokenizer" and device.type != "cpu":
            return module, CPU, warning
        return module, device, None

    monkeypatch.setattr(loading, "move_to_device", move)
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
    loader.load_own()
    assert (loader.device, loader.device_warning) == (CPU, no_room_for_tokenizers)
    assert moved[-1] == CPU
    assert loader.share_bytes is None


def test_a_further_model_that_the_gpu_cannot_hold_is_not_loaded(
    settings, memory_asked_of, no_room_for_tokenizers
):
    loader = ModelLoader(settings, GPU)
    with pytest.raises(OutOfMemory, match="cannot hold"):
        loader.load_further(ModelName("kronos-tiny"))
    assert (loader.device, loader.device_warning) == (GPU, None)


def test_what_a_model_will_see_needs_no_loading(settings):
    assert ModelLoader(settings, CPU).max_context_of("NeoQuasar/Kronos-mini") == 64
    published = ModelLoader(settings.model_copy(update={"max_context": None}), CPU)
    assert published.max_context_of("NeoQuasar/Kronos-mini") == 2048
    assert published.max_context_of("kronos-tiny") == 512


def test_reclaiming_calls_no_gpu_on_a_cpu(settings, monkeypatch):
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: pytest.fail("CUDA was called"))
    ModelLoader(settings, CPU).reclaim()


def test_a_model_that_ran_and_was_let_go_of_is_freed(settings):
    loader, service = ModelLoader(settings, CPU), ForecastService()
    service.start()
    loaded = loader.load_further(ModelName("kronos-tiny"))
    kept = weakref.ref(loaded.engine)
    hosted = service.add("kronos-tiny", loaded.engine)
    del loaded
    run = service.submit("job", [series_request(1, 20, 3)], hosted)
    assert service.wait(run, 20)
    paths = run.result()[0].paths
    service.remove(hosted)
    loader.reclaim()
    assert kept() is None
    assert paths.shape == (1, 3, 6)
    service.stop()
