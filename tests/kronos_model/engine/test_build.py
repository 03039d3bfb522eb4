"""How many slots an engine gets."""

from types import SimpleNamespace

import pytest
import torch

from kronos_model.engine import build
from kronos_model.engine.build import build_engine, default_chunk_bars
from kronos_model.engine.memory import default_slots, memory_of_weights, num_slots_on, slot_bytes
from kronos_model.engine.scheduling.slots import PLACES_PER_PATH
from kronos_model.engine.transformer import network
from kronos_model.engine.transformer.kv_cache import KVCache
from kronos_model.errors import OutOfMemory
from tests.kronos_model.engine.conftest import MAX_CONTEXT
from tests.kronos_model.engine.test_engine import ScriptedRunner


def test_slots_are_what_is_asked_for_or_what_the_memory_holds(pair):
    per_slot = slot_bytes(pair[0], MAX_CONTEXT)
    assert build_engine(*pair, max_context=MAX_CONTEXT, max_slots=5).load.slots == 5
    memory = memory_of_weights(*pair) + 5 * per_slot + per_slot // 2  # two for paths, two for their prompts
    engine = build_engine(*pair, max_context=MAX_CONTEXT, max_slots=5, memory_bytes=memory)
    assert engine.load.slots == 2


def test_slots_on_mps_are_as_few_as_on_the_cpu():
    """They share one memory: 512 would take 6.5 GB for each of keys and values."""
    slots = [default_slots(torch.device(kind)) for kind in ("cpu", "mps", "cuda")]
    chunks = [default_chunk_bars(torch.device(kind)) for kind in ("cpu", "mps", "cuda")]
    assert (slots, chunks) == ([128, 128, 512], [512, 2048, 8192])


@pytest.mark.parametrize(("has_tiles", "num_slots"), [(False, 1), (True, 3)])
def test_the_slots_of_another_device_are_reckoned_without_it(pair, monkeypatch, has_tiles, num_slots):
    """A CPU without tiles keeps keys and values in float32."""
    gpu, cpu, dtype = torch.device("cuda", 0), torch.device("cpu"), torch.bfloat16
    assert num_slots_on(gpu, *pair, max_context=MAX_CONTEXT) == 512
    assert num_slots_on(gpu, *pair, max_context=MAX_CONTEXT, max_slots=7) == 7
    for device, expected in ((gpu, 3), (cpu, num_slots)):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True})
        six_places = memory_of_weights(*pair) + 6 * slot_bytes(pair[0], MAX_CONTEXT, dtype, device)
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": has_tiles})
        given = {"max_context": MAX_CONTEXT, "memory_bytes": six_places, "dtype": dtype}
        assert num_slots_on(device, *pair, **given) == expected


@pytest.mark.parametrize(("max_slots", "num_spare"), [(1, 0), (5, 0), (8, 1), (32, 4)])
def test_the_cache_takes_what_is_said(pair, max_slots, num_spare, monkeypatch):
    made: list[KVCache] = []

    class Recorded(KVCache):
        def __init__(self, *args, **options) -> None:
            super().__init__(*args, **options)
            made.append(self)

    monkeypatch.setattr(network, "KVCache", Recorded)
    engine = build_engine(*pair, max_context=MAX_CONTEXT, max_slots=max_slots)
    assert engine.load.slots == max_slots
    num_slots = max_slots + num_spare
    expected = PLACES_PER_PATH * num_slots * slot_bytes(pair[0], MAX_CONTEXT)
    assert sum(cache.k.nbytes + cache.v.nbytes for cache in made) == expected


def test_missing_memory_is_an_out_of_memory_error(pair, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("MPS backend out of memory")

    monkeypatch.setattr(build, "ModelRunner", fail)
    with pytest.raises(OutOfMemory, match="128 slots"):
        build_engine(*pair, max_context=MAX_CONTEXT)


def test_without_room_for_one_slot_there_is_no_engine(pair):
    memory = memory_of_weights(*pair) + 2 * slot_bytes(pair[0], MAX_CONTEXT) - 1
    with pytest.raises(OutOfMemory, match=str(memory)):
        build_engine(*pair, max_context=MAX_CONTEXT, memory_bytes=memory)


def test_on_a_gpu_slots_are_fitted_to_the_memory_and_phases_timed_by_events(monkeypatch):
    gpu, weight = torch.device("cuda", 0), torch.zeros(100)
    attention = SimpleNamespace(n_heads=2, head_dim=8)
    model = SimpleNamespace(
        head=SimpleNamespace(proj_s1=SimpleNamespace(weight=SimpleNamespace(device=gpu))),
        transformer=[SimpleNamespace(self_attn=attention)],
        dep_layer=SimpleNamespace(cross_attn=attention),
        parameters=lambda: [weight],
        buffers=lambda: [],
    )
    fitted, marked = {}, []

    def fit(make: object, num_slots: int, **given: object) -> ScriptedRunner:
        fitted.update(given)
        return ScriptedRunner(num_slots - 2)

    class Event:
        def __init__(self, *, enable_timing: bool, blocking: bool) -> None:
            assert enable_timing
            assert blocking

        def record(self, stream: object) -> None:
            marked.append(stream)

    monkeypatch.setattr(build, "fitting_runner", fit)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: device)
    per_slot = slot_bytes(model, MAX_CONTEXT)
    engine = build_engine(model, model, max_context=MAX_CONTEXT, memory_bytes=1600 + 20 * per_slot)
    assert engine.load.slots == 8
    assert fitted["budget_bytes"] == 800 + 20 * per_slot  # without the weights as loaded, twice 400 bytes
    assert (fitted["slot_bytes"], fitted["chunk_bars"]) == (2 * per_slot, 8192)
    engine.step()
    assert set(marked) == {gpu}
