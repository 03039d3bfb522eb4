"""What the engine asks of a GPU, counted on one that does not exist."""

import pytest
import torch

from benchmarks.support.shapes import random_pair
from benchmarks.support.workload import series_request
from kronos_model.engine.build import slot_bytes
from kronos_model.engine.generation import SamplingParams
from kronos_model.engine.gpu import static_steps
from kronos_model.engine.gpu.kernels import Kernels
from tests.kronos_model.engine.fake_cuda import Trace, fake_device, mps_kernels, runner_on, traces_of

BFLOAT16, FLOAT32 = torch.bfloat16, torch.float32

IN_PLACE_OF_KERNELS = Kernels(
    draw=lambda logits, *others: logits.argmax(-1),
    read=lambda q, k, v, *others: torch.relu(q),
)
"""One operation each, as a GPU that does not exist runs no kernels. What a read moves is not counted."""


def traces_on_cuda(requests, num_slots: int = 64, **options) -> dict[str, list[Trace]]:
    with fake_device() as fake:
        return traces_of(runner_on(fake, num_slots=num_slots, **options), fake, requests)


def num_kernels(traces: list[Trace]) -> int:
    return sum(one.num_kernels for one in traces)


@pytest.mark.parametrize(
    ("dtype", "num_paths", "most_kernels"),
    [(FLOAT32, 1, 160), (BFLOAT16, 1, 190), (FLOAT32, 4, 160), (BFLOAT16, 4, 190)],
)
def test_a_decode_step(dtype, num_paths, most_kernels, monkeypatch):
    monkeypatch.setattr(static_steps, "kernels_on", lambda device: IN_PLACE_OF_KERNELS)
    step = decode_step(dtype, num_paths)
    assert step.num_kernels <= most_kernels


@pytest.mark.parametrize(("dtype", "most_kernels"), [(FLOAT32, 330), (BFLOAT16, 370)])
def test_a_decode_step_without_kernels_of_its_own(dtype, most_kernels):
    assert decode_step(dtype, 1).num_kernels <= most_kernels


def decode_step(dtype: torch.dtype, num_paths: int) -> Trace:
    """One of the steps of a batch that stays the same: only the first of them copies its inputs."""
    requests = [series_request(seed, 40, 4, SamplingParams(sample_count=num_paths)) for seed in range(4)]
    first, *steps = traces_on_cuda(requests, dtype=dtype)["DECODE"]
    assert first.transfers
    assert not first.waits
    for step in steps:
        assert not step.transfers
        assert not step.waits
        assert not step.float64
    return steps[-1]


def test_a_decode_step_moves_little_but_weights_and_cache():
    """For 64 full windows of 512 bars: 604 MB of keys and values, 50 MB of weights."""
    traces = traces_on_cuda([series_request(seed, 510, 2) for seed in range(64)])
    assert traces["DECODE"][-1].num_bytes <= 1.2 * (604 + 50) * 1e6


def test_shared_prompts_of_many_and_of_few_paths_are_not_padded_to_the_most():
    many = [series_request(0, 300, 3, SamplingParams(sample_count=64))]
    few = [series_request(seed, 300, 3, SamplingParams(sample_count=2)) for seed in range(1, 33)]
    num_bytes = [
        max(step.num_bytes for step in traces_on_cuda(some, num_slots=128, shape="mini")["DECODE"])
        for some in (many, few, many + few)
    ]
    assert num_bytes[2] < 2 * (num_bytes[0] + num_bytes[1])


def test_prefill_and_detokenising_of_20_series_that_come_together():
    traces = traces_on_cuda([series_request(seed, 400, 2) for seed in range(20)])
    (prefill,), (detokenising,), copies = traces["LOOKBACK"], traces["BARS"], traces["END"]
    assert num_kernels([prefill, detokenising, *copies]) <= 25 * 20
    assert len(prefill.transfers) + len(detokenising.transfers) <= 0.2 * 20
    assert not prefill.waits
    assert len(detokenising.waits) == 1  # the bars
    for one in (prefill, detokenising, *copies):
        assert not one.float64
        assert one.largest_bytes < 100e6
    assert not any(one.transfers for one in copies)


def test_prefill_is_not_padded_to_the_longest_lookback():
    """The tokenizer's encoder sees whole lookbacks."""
    (long,) = traces_on_cuda([series_request(0, 4096, 1)])["LOOKBACK"]
    (short,) = traces_on_cuda([series_request(seed, 40, 1) for seed in range(40)])["LOOKBACK"]
    requests = [series_request(seed, 40 if seed else 4096, 1) for seed in range(41)]
    (together,) = traces_on_cuda(requests)["LOOKBACK"]
    assert together.num_bytes <= 1.1 * (long.num_bytes + short.num_bytes)
    assert together.largest_bytes < 100e6


@pytest.mark.parametrize("num_paths", [1, 4])
def test_windows_that_have_slid(num_paths):
    sampling = SamplingParams(sample_count=num_paths)
    traces = traces_on_cuda([series_request(seed, 512, 3, sampling) for seed in range(16)])
    for phase in ("PROMPT", "WINDOW_PATHS"):
        assert len(traces[phase]) == 2
        for one in traces[phase]:
            assert one.num_kernels <= 15 * 16
            assert len(one.transfers) == 1
            assert not one.waits
            assert not one.float64


def test_every_operation_is_there_on_mps_and_none_is_in_float64():
    requests = [series_request(1, 40, 4, SamplingParams(sample_count=2)), series_request(2, 60, 3)]
    with fake_device("mps") as fake:
        runner = runner_on(fake, shape="mini", dtype=FLOAT32, num_slots=8, max_context=42)
        traces = traces_of(runner, fake, requests)
    assert {"LOOKBACK", "PROMPT", "WINDOW_PATHS", "DECODE", "BARS"} <= traces.keys()
    assert "linalg_eig" not in mps_kernels()
    for one in (trace for some in traces.values() for trace in some):
        assert one.kernels.keys() <= mps_kernels()
        assert not one.float64


@pytest.mark.parametrize(("shape", "head_dim"), [("small", 64), ("base", 56)])
def test_heads_have_a_multiple_of_8_numbers_and_slots_the_bytes_that_are_planned(shape, head_dim):
    """Heads of base have 52; kernels need a multiple of 8."""
    with fake_device() as fake:
        network = runner_on(fake, shape=shape, num_slots=8)._network
        with fake.device:
            (model, _) = random_pair(shape)
        planned = slot_bytes(model, 512, BFLOAT16)
    tensors = [cache.k for cache in (network._blocks, network._dependency)]
    assert network._blocks.k.shape[-1] == head_dim
    assert all(one.shape[-1] % 8 == 0 for one in tensors)
    assert planned == sum(2 * one[:, 0].numel() * one.itemsize for one in tensors)
