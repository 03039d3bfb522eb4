import pytest
import torch

from benchmarks.support.workload import series_request
from kronos_model.engine.sampling import NoiseSource, RowParams, filter_logits, sample
from kronos_model.engine.sequence import Generation, SamplingParams, Sequence

CPU = torch.device("cpu")


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values).unsqueeze(-1)


@pytest.mark.parametrize("rows", [1, 5, 64])
def test_the_draw_is_what_multinomial_draws(rows):
    logits = torch.randn(rows, 50, generator=torch.Generator().manual_seed(0)) * 3
    ours, theirs = torch.Generator().manual_seed(11), torch.Generator().manual_seed(11)
    params = RowParams.of([SamplingParams(top_p=1.0)] * rows, CPU)
    for _ in range(4):
        noise = torch.empty(rows, 50).exponential_(generator=ours)
        expected = torch.multinomial(logits.softmax(-1), 1, generator=theirs).squeeze(-1)
        assert torch.equal(sample(logits, params, noise), expected)
    assert torch.equal(ours.get_state(), theirs.get_state())


def test_each_row_has_its_own_parameters():
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]]).repeat(3, 1)
    kept = filter_logits(logits, torch.tensor([[0], [2], [0]]), column(1.0, 1.0, 0.5)).isfinite()
    assert kept.tolist() == [[True] * 4, [True, True, False, False], [True, False, False, False]]


def test_top_k_keeps_ties_with_the_kth():
    kept = filter_logits(torch.tensor([[1.0, 5.0, 1.0, 0.0]]), torch.tensor([[2]]), column(1.0)).isfinite()
    assert kept.tolist() == [[True, True, True, False]]


def test_top_p_keeps_the_token_that_crosses_it():
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log()
    for top_p, num_kept in ((0.49, 1), (0.6, 2), (0.9, 3), (1.0, 3)):
        assert filter_logits(logits, torch.tensor([[0]]), column(top_p)).isfinite().sum() == num_kept


def test_top_p_works_on_what_top_k_left():
    # Of all four, the best alone has 0.4 < 0.6; of the best two it has 0.57, so the second is kept; with a
    # top_p of 0.5 it alone crosses.
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    for top_p, num_kept in ((0.5, 1), (0.6, 2)):
        assert filter_logits(logits, torch.tensor([[2]]), column(top_p)).isfinite().sum() == num_kept


def test_a_round_uses_its_own_rows_of_the_whole_noise():
    generation = Generation(series_request(0, 4, 2, SamplingParams(sample_count=5, seed=3)))
    whole = NoiseSource(Sequence(generation, 0, 5))
    part = NoiseSource(Sequence(generation, 2, 2))
    for name in ("s1", "s2"):
        assert torch.equal(part.draw(name, 8), whole.draw(name, 8)[2:4])


def test_noise_is_drawn_anew_only_after_commit():
    source = NoiseSource(Sequence(Generation(series_request(0, 4, 2, SamplingParams(seed=3))), 0, 1))
    first = source.draw("s1", 8)
    assert source.draw("s1", 8) is first
    source.commit()
    assert not torch.equal(source.draw("s1", 8), first)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0.0),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("sample_count", 0),
        ("seed", -1),
        ("seed", 2**63),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(field, value):
    with pytest.raises(ValueError, match=field) as refused:
        SamplingParams(**{field: value})
    assert refused.value.field == field
