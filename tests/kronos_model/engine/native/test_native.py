"""The native kernels: the same bits whatever computes them, and PyTorch where they cannot be used."""

import gc
import hashlib
import logging
import multiprocessing
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import llvmlite.binding
import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.support.workload import series_request
from kronos_model.engine import choice
from kronos_model.engine.build import build_engine
from kronos_model.engine.choice import engine_outlook
from kronos_model.engine.decoding.steps import EagerSteps
from kronos_model.engine.engine import Engine
from kronos_model.engine.generation import SamplingParams
from kronos_model.engine.native.compiling import LEVELS
from kronos_model.engine.reports import EngineKind
from kronos_model.engine.runner import ModelRunner
from kronos_model.engine.transformer import network
from kronos_model.engine.transformer.network import Network
from kronos_model.errors import CompilationFailed
from kronos_model.model import Kronos
from tests.kronos_model.engine.conftest import MAX_CONTEXT, network_of, random_pair
from tests.waiting import WAIT_S, await_true

ROOT = Path(__file__).parents[4]
CPU = torch.device("cpu")
KINDS: tuple[EngineKind, ...] = ("native", "torch")
TOLERANCE = 1e-4
"""Of logits, divided by the largest one if that is above 1."""
SIZES = {"num_slots": 2, "capacity": 64, "max_positions": 64, "dtype": torch.float32}
REQUESTS = [
    series_request(3, 40, 9, SamplingParams(sample_count=5, seed=5)),  # the window slides
    series_request(4, 7, 12, SamplingParams(sample_count=2, seed=6)),
]


class RecordingSteps(EagerSteps):
    """Keeps the logits of all steps. The tokens do not depend on them, so that logits can be compared."""

    logits: list[Tensor]

    def choose(self, logits: Tensor, *_: object) -> Tensor:
        self.logits.append(logits.clone())
        generator = torch.Generator().manual_seed(len(self.logits))
        return torch.randint(logits.shape[1], (len(logits),), generator=generator)


def logits_of(pair, kind: EngineKind = "native", dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """The logits of both tokens in every step of the ``REQUESTS``."""
    logits: list[Tensor] = []
    steps = type("Steps", (RecordingSteps,), {"logits": logits})
    sizes = {"max_context": MAX_CONTEXT, "num_slots": 16, "dtype": dtype}
    Engine(ModelRunner(*pair, **sizes, steps=steps, network=network_of(kind, pair[0], dtype))).run(REQUESTS)
    return logits


def difference(native: Network, model: Kronos) -> str | None:
    from kronos_model.engine.native.check import difference_of  # can be imported once the kernels are loaded

    return difference_of(native, model, torch.float32)


def digest() -> str:
    """Of the native kernels' logits."""
    return hashlib.sha256(
        b"".join(logits.numpy().tobytes() for logits in logits_of(random_pair()))
    ).hexdigest()


@pytest.fixture
def set_threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def kernel_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("kronos-kernel-")}


def test_any_number_of_threads_gives_the_same_bits(set_threads):
    digests = set()
    for number in (1, 2, 3):
        set_threads(number)
        digests.add(digest())
        assert torch.get_num_threads() == number  # sampling between the kernels uses one
    assert len(digests) == 1


def has_avx512() -> bool:
    if platform.machine() != "x86_64":
        return False
    features = llvmlite.binding.get_host_cpu_features()
    return all(features.get(feature) for feature in LEVELS["x86-64-v4"])


@pytest.mark.at_length  # compiles once more
@pytest.mark.skipif(not has_avx512(), reason="this CPU has no AVX-512")
def test_avx2_gives_the_bits_of_avx512():
    script = f"from {__name__} import digest; print(digest())"
    of_level = {
        name: subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"NUMBA_CPU_NAME": name},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            timeout=3 * WAIT_S,
        ).stdout.strip()
        for name in ("x86-64-v3", "this CPU's own")
    }
    assert of_level == dict.fromkeys(of_level, digest())


def test_the_threads_end_with_their_network(pair, set_threads):
    others = kernel_threads()
    set_threads(3)
    native = network_of("native", pair[0])(pair[0], **SIZES)
    assert len(kernel_threads() - others) == 2
    set_threads(2)
    assert difference(native, pair[0]) is None
    await_true(lambda: len(kernel_threads() - others) == 1)
    del native
    gc.collect()
    await_true(lambda: not kernel_threads() - others)


def test_a_fork_has_threads_of_its_own(pair, set_threads, monkeypatch):
    set_threads(1)  # PyTorch itself hangs in a fork if its threads have run
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    native = network_of("native", pair[0])(pair[0], **SIZES)

    def compute() -> None:
        assert not kernel_threads()
        assert difference(native, pair[0]) is None
        assert len(kernel_threads()) == 1

    child = multiprocessing.get_context("fork").Process(target=compute)
    child.start()
    child.join(WAIT_S)
    child.kill()
    assert child.exitcode == 0
    assert difference(native, pair[0]) is None


def test_logits_are_those_of_pytorch(pair):
    for ours, theirs in zip(logits_of(pair, "native"), logits_of(pair, "torch"), strict=True):
        scale = max(1.0, float(theirs.abs().max()))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=scale * TOLERANCE)


@pytest.mark.parametrize(
    "kept_as",
    [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.at_length)],  # which compiles once more
)
def test_rounded_weights_keys_and_values_cost_no_more_than_with_pytorch(pair, monkeypatch, kept_as):
    for module in (choice, network):
        monkeypatch.setattr(module, "cache_dtype", lambda device, dtype: kept_as)
    ours, theirs = (torch.cat([*map(torch.ravel, logits_of(pair, kind, torch.bfloat16))]) for kind in KINDS)
    monkeypatch.undo()
    exact = torch.cat([*map(torch.ravel, logits_of(pair, "torch"))])
    assert not torch.equal(ours, exact)
    assert (ours - exact).std() <= (theirs - exact).std()


def damaged_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    from kronos_model.engine.native import weights  # can be imported once the kernels are loaded

    turns = weights.turns
    monkeypatch.setattr(weights, "turns", lambda *given: np.ascontiguousarray(turns(*given)[:, ::-1]))


def damaged_dependency(monkeypatch: pytest.MonkeyPatch) -> None:
    from_model = network.DependencyWeights.from_model

    def damaged(*given: object) -> network.DependencyWeights:
        weights = from_model(*given)
        return weights._replace(norm_scale=weights.norm_scale * 1.01)

    monkeypatch.setattr(network.DependencyWeights, "from_model", damaged)


@pytest.mark.parametrize(("damage", "name"), [(damaged_turns, "s1"), (damaged_dependency, "s2")])
def test_kernels_that_fail_their_test_are_not_used(pair, monkeypatch, damage, name):
    network_of("native", pair[0])  # loads them
    damage(monkeypatch)
    engine = build_engine(*pair, max_context=MAX_CONTEXT)
    assert engine.kind == "torch"
    failed = "the self-test of the native kernels failed: logits of"
    assert engine.kind_reason.startswith(f"{failed} {name} differ from PyTorch's by ")
    assert len(engine.run(REQUESTS)) == len(REQUESTS)


@pytest.mark.parametrize(
    ("sizes", "max_context", "reason"),
    [
        ({"d_model": 24}, MAX_CONTEXT, "the model's d_model, 24, is not a multiple of 16"),
        ({"ff_dim": 40}, MAX_CONTEXT, "the model's ff_dim, 40, is not a multiple of 16"),
        ({"ff_dim": 8224}, MAX_CONTEXT, "the model or its context has rows of more than 8208 numbers"),
        ({}, 4096, "the model or its context has rows of more than 8208 numbers"),
    ],
)
def test_a_model_whose_sizes_the_kernels_lack_is_computed_by_pytorch(sizes, max_context, reason):
    engine = build_engine(*random_pair(**sizes), max_context=max_context)
    assert (engine.kind, engine.kind_reason) == ("torch", reason)
    assert len(engine.run(REQUESTS)) == len(REQUESTS)


def test_without_numba_pytorch_computes_and_says_why(pair, monkeypatch):
    monkeypatch.setattr(choice, "find_spec", lambda name: None)
    engine = build_engine(*pair, max_context=MAX_CONTEXT)
    assert (engine.kind, engine.kind_reason) == ("torch", "Numba is not installed")
    assert engine_outlook(CPU) == ("torch", "Numba is not installed", True, True)
    engine = build_engine(*pair, max_context=MAX_CONTEXT, kind="torch")
    assert (engine.kind, engine.kind_reason) == ("torch", None)


def test_users_see_how_a_compilation_failed_and_the_log_what_was_printed(pair, monkeypatch, caplog):
    def fail(*args: object) -> None:
        raise CompilationFailed("the kernel compiler was killed\nLLVM ERROR: out of memory")

    monkeypatch.setattr(choice, "ready_kernels", fail)
    with caplog.at_level(logging.INFO):
        engine = build_engine(*pair, max_context=MAX_CONTEXT)
    assert (engine.kind, engine.kind_reason) == ("torch", "the kernel compiler was killed")
    assert "LLVM ERROR" in caplog.text
