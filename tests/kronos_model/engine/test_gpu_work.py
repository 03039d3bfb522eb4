"""What the engine asks of a GPU, counted on one that does not exist."""

from dataclasses import replace

import pytest
import torch

from benchmarks.support.workload import random_pair, series_request
from kronos_model.engine.decoding import static_steps
from kronos_model.engine.decoding.static_steps import Kernels
from kronos_model.engine.generation import Generation, SamplingParams
from kronos_model.engine.memory import slot_bytes
from kronos_model.engine.scheduling.path_table import PathTable
from kronos_model.engine.sequence import Sequence
from tests.kronos_model.engine.fake_cuda import Trace, fake_device, mps_kernels, runner_on, traces_of

BFLOAT16, FLOAT32 = torch.bfloat16, torch.float32

IN_PLACE_OF_KERNELS = Kernels(
    draw=lambda logits, *others: logits.argmax(-1),
    read=lambda q, k, v, *others: torch.relu(q),
)
"""One operation each, as a GPU that does not exist runs no kernels."""


def traces_on_cuda(requests, **options) -> dict[str, list[Trace]]:
    """Of Kronos-mini, which has half the blocks of Kronos-small."""
    with fake_device() as fake:
        return traces_of(runner_on(fake, shape="mini", num_slots=64, **options), fake, requests)


def num_kernels(traces: list[Trace]) -> int:
    return sum(trace.num_kernels for trace in traces)


@pytest.mark.parametrize(
    ("dtype", "num_paths", "kernels", "num_kernels"),
    [
        (FLOAT32, 4, IN_PLACE_OF_KERNELS, 94),
        (BFLOAT16, 1, IN_PLACE_OF_KERNELS, 113),
        (FLOAT32, 1, None, 266),
        (BFLOAT16, 4, None, 382),
    ],
    ids=["float32-4-kernels", "bfloat16-1-kernels", "float32-1", "bfloat16-4"],
)
def test_only_the_first_step_of_a_batch_that_stays_the_same_copies_its_inputs(
    dtype, num_paths, kernels, num_kernels, monkeypatch
):
    """Any two of the options together."""
    monkeypatch.setattr(static_steps, "kernels_on", lambda device: kernels)
    requests = [series_request(seed, 40, 3, SamplingParams(sample_count=num_paths)) for seed in range(4)]
    first, *steps = traces_on_cuda(requests, dtype=dtype)["DECODE"]
    assert first.transfers
    assert not first.waits
    for step in steps:
        assert not step.transfers
        assert not step.waits
        assert not step.float64
        assert step.num_kernels == num_kernels


@pytest.mark.parametrize(
    ("dtype", "has_kernels", "num_kernels", "gigabytes"),
    [
        (BFLOAT16, True, 189, 5.28),
        (BFLOAT16, False, 363, 5.74),
        (FLOAT32, True, 154, 10.20),
        (FLOAT32, False, 326, 10.70),
    ],
)
def test_a_step_of_512_full_windows(dtype, has_kernels, num_kernels, gigabytes, monkeypatch):
    """4.83 GB of keys and values in bfloat16; see docs/how-it-works/performance.md."""
    step = steady_step([1] * 512, 511, monkeypatch, dtype=dtype, has_kernels=has_kernels)
    assert step.num_kernels == num_kernels
    assert step.num_bytes == pytest.approx(gigabytes * 1e9, rel=0.002)


@pytest.mark.parametrize(
    ("num_paths", "gigabytes", "with_kernels"),
    [([256] + [2] * 128, 9.54, 5.27), ([512], 2.26, 5.27)],
)
def test_a_step_with_shared_prompts(num_paths, gigabytes, with_kernels, monkeypatch):
    """Prompts of many and of few paths are not padded to the most; a kernel reads each path's prompt anew."""
    for has_kernels, expected in ((False, gigabytes), (True, with_kernels)):
        step = steady_step(num_paths, 510, monkeypatch, has_kernels=has_kernels)
        assert step.num_bytes == pytest.approx(expected * 1e9, rel=0.002)


def steady_step(
    num_paths: list[int],
    lookback: int,
    monkeypatch: pytest.MonkeyPatch,
    *,
    dtype: torch.dtype = BFLOAT16,
    has_kernels: bool,
) -> Trace:
    """The second step of series with so many paths each: 512 in all, of Kronos-small."""
    bytes_of_a_bar: list[int] = []  # by layer

    def read(q, k, v, *others):
        bytes_of_a_bar.append(2 * k[0, :, 0].numel() * k.itemsize)
        return torch.relu(q)

    kernels = replace(IN_PLACE_OF_KERNELS, read=read) if has_kernels else None
    monkeypatch.setattr(static_steps, "kernels_on", lambda device: kernels)
    table, first = PathTable(512, 512), 0
    for number, count in enumerate(num_paths):
        request = series_request(1, lookback, 3, SamplingParams(sample_count=count))
        slots = tuple(range(first, first + count))
        sequence = Sequence(Generation(request), count, 512, slots, 512 + number if count > 1 else first)
        sequence.complete(sequence.next_chunk(lookback))
        table.join(sequence)
        first += count
    with fake_device() as fake:
        runner, batch = runner_on(fake, dtype=dtype), table.batch_of(table.sequences)
        runner._steps.decode(batch)
        table.advance(batch)
        bytes_of_a_bar.clear()
        with fake.traced() as step:
            runner._steps.decode(batch)
    num_bars = table.columns["seen"].sum() + table.columns["prompt_bars"].sum()
    step.num_bytes += int(num_bars) * sum(bytes_of_a_bar)
    return step


def test_prefill_and_detokenising_of_20_series_that_come_together():
    traces = traces_on_cuda([series_request(seed, 400, 2) for seed in range(20)])
    (prefill,), (detokenising,), copies = traces["LOOKBACK"], traces["BARS"], traces["END"]
    assert num_kernels([prefill, detokenising, *copies]) <= 17 * 20
    assert len(prefill.transfers) + len(detokenising.transfers) <= 0.2 * 20
    assert not prefill.waits
    assert len(detokenising.waits) == 1  # the bars
    for trace in (prefill, detokenising, *copies):
        assert not trace.float64
        assert trace.largest_bytes < 100e6
    assert not any(trace.transfers for trace in copies)


def test_prefill_is_not_padded_to_the_longest_lookback():
    """The tokenizer's encoder sees whole lookbacks."""
    (long,) = traces_on_cuda([series_request(0, 4096, 1)])["LOOKBACK"]
    (short,) = traces_on_cuda([series_request(seed, 40, 1) for seed in range(12)])["LOOKBACK"]
    requests = [series_request(seed, 40 if seed else 4096, 1) for seed in range(13)]
    (together,) = traces_on_cuda(requests)["LOOKBACK"]
    assert together.num_bytes <= 1.1 * (long.num_bytes + short.num_bytes)
    assert together.largest_bytes < 100e6


def test_windows_that_have_slid():
    paths = [SamplingParams(sample_count=count) for count in (1, 4)]
    traces = traces_on_cuda([series_request(seed, 512, 3, paths[seed % 2]) for seed in range(16)])
    for phase in ("PROMPT", "WINDOW_PATHS"):
        assert len(traces[phase]) == 2
        for trace in traces[phase]:
            assert trace.num_kernels <= 8 * 16
            assert len(trace.transfers) == 1
            assert not trace.waits
            assert not trace.float64


def test_every_operation_is_there_on_mps_and_none_is_in_float64():
    requests = [series_request(1, 40, 4, SamplingParams(sample_count=2)), series_request(2, 60, 3)]
    with fake_device("mps") as fake:
        runner = runner_on(fake, shape="mini", dtype=FLOAT32, num_slots=8, max_context=42)
        traces = traces_of(runner, fake, requests)
    assert {"LOOKBACK", "PROMPT", "WINDOW_PATHS", "DECODE", "BARS"} <= traces.keys()
    assert "linalg_eig" not in mps_kernels()
    for trace in (trace for some in traces.values() for trace in some):
        assert trace.kernels.keys() <= mps_kernels()
        assert not trace.float64


@pytest.mark.parametrize(("shape", "head_dim"), [("small", 64), ("base", 56)])
def test_heads_have_a_multiple_of_8_numbers_and_slots_the_bytes_that_are_planned(shape, head_dim):
    """Heads of base have 52; kernels need a multiple of 8."""
    with fake_device() as fake:
        network = runner_on(fake, shape=shape, num_slots=8)._network
        with fake.device:
            (model, _) = random_pair(shape)
        planned = slot_bytes(model, 512, BFLOAT16)
    tensors = [cache.k for cache in (network.blocks, network.dependency)]
    assert network.blocks.k.shape[-1] == head_dim
    assert all(cached.shape[-1] % 8 == 0 for cached in tensors)
    assert planned == sum(2 * cached[:, 0].numel() * cached.itemsize for cached in tensors)
