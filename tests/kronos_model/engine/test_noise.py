"""A series' noise depends on its seed alone."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.support.workload import series_request
from kronos_model.engine.decoding import noise
from kronos_model.engine.decoding.noise import NoiseSource, counter_noise
from kronos_model.engine.generation import Generation, SamplingParams
from kronos_model.engine.sequence import Sequence

S1, S2 = 8, 5


def sequence_of(num_paths: int, *, sample_count: int | None = None, first_path: int = 0) -> Sequence:
    generation = Generation(
        series_request(0, 4, 12, SamplingParams(sample_count=sample_count or num_paths, seed=3))
    )
    slots = tuple(range(num_paths))
    return Sequence(generation, num_paths, 16, slots, prompt_slot=100, first_path=first_path)


def source_of(sequence: Sequence, vocabularies: tuple[int, int] = (S1, S2)) -> NoiseSource:
    return NoiseSource(sequence.request.sampling, vocabularies)


def expected(
    num_paths: int, num_steps: int, vocabularies: tuple[int, int] = (S1, S2)
) -> list[list[torch.Tensor]]:
    """The noise of all paths, by step."""
    generator = torch.Generator().manual_seed(3)
    return [
        [torch.empty(num_paths, size).exponential_(generator=generator) for size in vocabularies]
        for _ in range(num_steps)
    ]


def assert_next_is(source: NoiseSource, sequence: Sequence, steps: list[list[torch.Tensor]]) -> None:
    """The sequence draws its rows of its next step, and goes on to the step after that."""
    rows = slice(sequence.first_path, sequence.first_path + sequence.num_paths)
    for ours, of_all in zip(source.draw(sequence), steps[sequence.num_generated], strict=True):
        assert torch.equal(ours, of_all[rows])
    sequence.num_generated += 1


@pytest.mark.parametrize(
    ("num_paths", "sample_count", "first_path", "vocabularies"),
    [(4, 4, 0, (S1, S2)), (2, 5, 2, (S1, S2)), (1, 20, 17, (1024, 512))],
    ids=["all-paths", "a-round", "many-skipped-numbers"],
)
def test_draws_are_the_rows_of_the_seeds_generator_one_after_the_other(
    num_paths, sample_count, first_path, vocabularies
):
    sequence = sequence_of(num_paths, sample_count=sample_count, first_path=first_path)
    steps, source = expected(sample_count, 3, vocabularies), source_of(sequence, vocabularies)
    for _ in steps:
        assert_next_is(source, sequence, steps)


def test_a_step_that_is_run_again_gets_the_same_draws():
    sequence, steps = sequence_of(3), expected(3, 2)
    source = source_of(sequence)
    source.draw(sequence)
    tail = sequence.split(1)
    for drawing in (sequence, tail, sequence, tail):
        assert_next_is(source, drawing, steps)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 7)), max_size=60))
def test_sequences_of_a_generation_get_their_rows_in_whatever_order_they_go_on(moves):
    """They are cut in two, start over and begin later."""
    steps = expected(12, 12)
    sequences = [sequence_of(2, sample_count=12)]
    source, generation = source_of(sequences[0]), sequences[0].generation
    for number, move in moves:
        sequence = sequences[number % len(sequences)]
        begun = max(each.first_path + each.num_paths for each in sequences)
        if move == 7:
            sequence.start_over()
        elif move == 6 and begun + 5 <= 12:
            sequences.append(Sequence(generation, 5, 16, (0,) * 5, prompt_slot=100, first_path=begun))
        elif 0 < move < sequence.num_paths:
            sequences.append(sequence.split(move))
        elif sequence.num_generated < len(steps):
            assert_next_is(source, sequence, steps)
    for sequence in sequences:
        while sequence.num_generated < len(steps):
            assert_next_is(source, sequence, steps)
    if max(each.first_path + each.num_paths for each in sequences) == 12:
        assert list(source._states) in ([], [len(steps) - 1])  # no more than the newest is kept


def test_a_sequence_skips_no_rows_that_another_has_drawn(monkeypatch):
    skipped: list[int] = []
    skip = noise._skip
    monkeypatch.setattr(
        noise, "_skip", lambda generator, count: (skipped.append(count), skip(generator, count))
    )
    steps = expected(12, 12)
    first = sequence_of(4, sample_count=12)
    source = source_of(first)
    for _ in steps:
        assert_next_is(source, first, steps)
    for first_path in (4, 8):  # the second begins where the one before it ends
        skipped.clear()
        later = Sequence(first.generation, 4, 16, (0,) * 4, prompt_slot=100, first_path=first_path)
        for _ in steps:
            assert_next_is(source, later, steps)
        assert not any(skipped)


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
    noise, other = noise_of(), noise_of(**changed)
    assert abs(torch.corrcoef(torch.stack((noise[0], other[0])))[0, 1]) < 0.15


def test_counted_noise_depends_on_a_rows_place_alone():
    rows = torch.arange(ROWS)
    together = noise_of(seed=rows, path=rows)
    alone = counter_noise(rows[5:6], rows[5:6], torch.zeros(1, dtype=torch.int64), 0, 1024)
    assert torch.equal(together[5:6], alone)
