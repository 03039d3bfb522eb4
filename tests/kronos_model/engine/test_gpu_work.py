"""What the engine asks of a GPU, counted on one that does not exist."""

import pytest
import torch

from benchmarks.support.workload import series_request
from kronos_model.engine import static_steps
from kronos_model.engine.generation import SamplingParams
from kronos_model.engine.kernels import Kernels
from tests.kronos_model.engine.fake_cuda import Trace, fake_device, runner_on, traces_of

BFLOAT16, FLOAT32 = torch.bfloat16, torch.float32

IN_PLACE_OF_KERNELS = Kernels(
    draw=lambda logits, *others: logits.argmax(-1),
    read=lambda q, k, v, *others: torch.relu(q),
)
"""One operation each, as a GPU that does not exist runs no kernels. What a read moves is not counted."""


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
    requests = [series_request(seed, 40, 3, SamplingParams(sample_count=num_paths)) for seed in range(4)]
    with fake_device() as fake:
        traces = traces_of(runner_on(fake, dtype=dtype, num_slots=16), fake, requests)
    step = traces["DECODE"][-1]
    assert len(step.transfers) <= 2
    assert not step.float64
    return step


def test_a_decode_step_moves_little_but_weights_and_cache():
    """For 64 full windows of 512 bars: 604 MB of keys and values, 50 MB of weights."""
    with fake_device() as fake:
        runner = runner_on(fake, num_slots=64)
        traces = traces_of(runner, fake, [series_request(seed, 500, 12) for seed in range(64)])
    assert traces["DECODE"][-1].num_bytes <= 1.2 * (604 + 50) * 1e6
