"""What the engine asks of a GPU, counted on one that does not exist."""

import pytest
import torch

from benchmarks.support.workload import series_request
from kronos_model.engine.generation import SamplingParams
from tests.kronos_model.engine.fake_cuda import fake_device, runner_on, traces_of

BFLOAT16, FLOAT32 = torch.bfloat16, torch.float32


@pytest.mark.parametrize(
    ("dtype", "num_paths", "most_kernels"),
    [(FLOAT32, 1, 390), (BFLOAT16, 1, 510), (FLOAT32, 4, 570), (BFLOAT16, 4, 715)],
)
def test_a_decode_step(dtype, num_paths, most_kernels):
    requests = [series_request(seed, 40, 3, SamplingParams(sample_count=num_paths)) for seed in range(4)]
    with fake_device() as fake:
        traces = traces_of(runner_on(fake, dtype=dtype, num_slots=16), fake, requests)
    step = traces["DECODE"][-1]
    assert step.num_kernels <= most_kernels
    assert len(step.transfers) <= 2
    assert not step.float64
