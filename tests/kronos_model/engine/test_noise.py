"""A series' noise depends on its seed alone."""

import pytest
import torch

from benchmarks.support.workload import series_request
from kronos_model.engine.decoding.noise import NoiseSource, counter_noise
from kronos_model.engine.generation import Generation, SamplingParams
from kronos_model.engine.sequence import Sequence

S1, S2 = 8, 5


def source(num_paths: int, *, sample_count: int | None = None, first_path: int = 0) -> NoiseSource:
    sampling = SamplingParams(sample_count=sample_count or num_paths, seed=3)
    generation = Generation(series_request(0, 4, 2, sampling))
    slots = tuple(range(num_paths))
    sequence = Sequence(generation, num_paths, 16, slots, prompt_slot=100, first_path=first_path)
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


def test_many_skipped_numbers_are_skipped_exactly():
    sampling = SamplingParams(sample_count=20, seed=3)
    generation = Generation(series_request(0, 4, 2, sampling))
    part = NoiseSource(Sequence(generation, 1, 16, (0,), 100, first_path=17), 1024, 512)
    generator = torch.Generator().manual_seed(3)
    for step in range(2):
        for ours, vocabulary in zip(part.draw(step), (1024, 512), strict=True):
            assert torch.equal(ours[0], torch.empty(20, vocabulary).exponential_(generator=generator)[17])


@pytest.mark.parametrize("is_run_again", [False, True])
def test_a_sequence_goes_on_from_a_state(is_run_again):
    sampling = SamplingParams(sample_count=5, seed=3)
    generation = Generation(series_request(0, 4, 6, sampling))
    sequence = Sequence(generation, 2, 16, (0, 1), 100, first_path=2)
    ours = NoiseSource(sequence, S1, S2)
    for step in range(3 + is_run_again):
        ours.draw(step)
    sequence.num_generated = 3
    later = NoiseSource(sequence, S1, S2, ours.state_before(3))
    for step in (3, 4):
        assert all(map(torch.equal, later.draw(step), ours.draw(step)))


def test_a_step_that_is_run_again_gets_the_same_draws():
    ours = source(2)
    first = [noise.clone() for noise in ours.draw(0)]
    assert all(map(torch.equal, ours.draw(0), first))
    assert not torch.equal(ours.draw(1)[0], first[0])
    with pytest.raises(ValueError, match="order"):
        ours.draw(0)


ROWS = 64


def noise_of(
    *, seed: int | torch.Tensor = 1, path: int | torch.Tensor = 0, step: int = 0, draw: int = 0
) -> torch.Tensor:
    columns = [torch.as_tensor(value).expand(ROWS).contiguous() for value in (seed, path, step)]
    return counter_noise(*columns, draw, 1024)


def test_counted_noise_is_exponential():
    noise = noise_of(seed=torch.arange(ROWS) * 7919)
    assert noise.min() > 0
    assert noise.mean() == pytest.approx(1, abs=0.02)
    assert noise.var() == pytest.approx(1, abs=0.05)
    # A quarter of an exponential distribution lies below −log 0.75.
    assert (noise < 0.28768).float().mean() == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize(
    "changed",
    [{"seed": 2}, {"seed": 2**63 - 1}, {"path": 1}, {"step": 1}, {"draw": 1}, {"step": 1, "draw": 1}],
)
def test_counted_noise_is_another_for_every_seed_path_step_and_draw(changed):
    one, other = noise_of(), noise_of(**changed)
    assert abs(torch.corrcoef(torch.stack((one[0], other[0])))[0, 1]) < 0.15


def test_counted_noise_depends_on_a_rows_place_alone():
    rows = torch.arange(ROWS)
    together = noise_of(seed=rows, path=rows)
    alone = counter_noise(rows[5:6], rows[5:6], torch.zeros(1, dtype=torch.int64), 0, 1024)
    assert torch.equal(together[5:6], alone)
