"""A series' noise depends on its seed alone."""

import pytest
import torch

from benchmarks.support.workload import series_request
from kronos_model.engine.generation import Generation, SamplingParams
from kronos_model.engine.noise import NoiseSource
from kronos_model.engine.sequence import Sequence

S1, S2 = 8, 5


def source(num_paths: int, *, sample_count: int | None = None, first_path: int = 0) -> NoiseSource:
    sampling = SamplingParams(sample_count=sample_count or num_paths, seed=3)
    sequence = Sequence(Generation(series_request(0, 4, 2, sampling)), num_paths, 16, first_path=first_path)
    return NoiseSource(sequence, S1, S2)


def test_draws_are_those_of_the_seeds_generator_one_after_the_other():
    generator = torch.Generator().manual_seed(3)
    ours = source(4)
    for step in range(3):
        s1, s2 = ours.draw(step)
        assert torch.equal(s1, torch.empty(4, S1).exponential_(generator=generator))
        assert torch.equal(s2, torch.empty(4, S2).exponential_(generator=generator))


def test_a_round_uses_its_own_rows_of_the_whole_noise():
    whole, part = source(5), source(2, sample_count=5, first_path=2)
    for step in range(2):
        for ours, all_rows in zip(part.draw(step), whole.draw(step), strict=True):
            assert torch.equal(ours, all_rows[2:4])


def test_a_step_that_is_run_again_gets_the_same_draws():
    ours = source(2)
    first = [noise.clone() for noise in ours.draw(0)]
    assert all(map(torch.equal, ours.draw(0), first))
    assert not torch.equal(ours.draw(1)[0], first[0])
    with pytest.raises(ValueError, match="order"):
        ours.draw(0)
