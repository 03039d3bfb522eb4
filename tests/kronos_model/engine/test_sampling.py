import pytest
import torch

from kronos_model.engine.decoding.sampling import RowParams, filter_probabilities, sample, sort_descending
from kronos_model.engine.generation import SamplingParams

CPU = torch.device("cpu")


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values).unsqueeze(-1)


@pytest.mark.parametrize("rows", [1, 5, 64])
def test_the_draw_is_what_multinomial_draws(rows):
    logits = torch.randn(rows, 50, generator=torch.Generator().manual_seed(0)) * 3
    ours, theirs = torch.Generator().manual_seed(11), torch.Generator().manual_seed(11)
    params = RowParams.from_rows([SamplingParams(top_p=1.0)] * rows, CPU)
    for _ in range(4):
        noise = torch.empty(rows, 50).exponential_(generator=ours)
        expected = torch.multinomial(logits.softmax(-1), 1, generator=theirs).squeeze(-1)
        assert torch.equal(sample(logits, params, noise), expected)
    assert torch.equal(ours.get_state(), theirs.get_state())


def kept(probabilities: list[float], *, top_k: int = 0, top_p: float = 1.0) -> list[bool]:
    p = torch.tensor([probabilities])
    left = filter_probabilities(p, torch.tensor([[top_k]]), column(top_p))
    assert torch.equal(left[left > 0], p[left > 0])
    return (left > 0)[0].tolist()


def test_each_row_has_its_own_parameters():
    p = torch.tensor([[3.0, 2.0, 1.0, 0.0]]).softmax(-1).repeat(3, 1)
    left = filter_probabilities(p, torch.tensor([[0], [2], [0]]), column(1.0, 1.0, 0.5)) > 0
    assert left.tolist() == [[True] * 4, [True, True, False, False], [True, False, False, False]]


def test_top_k_keeps_ties_with_the_kth():
    assert kept([0.2, 0.5, 0.2, 0.1], top_k=2) == [True, True, True, False]
    assert kept([0.2, 0.5, 0.2, 0.1], top_k=1000) == [True] * 4


@pytest.mark.parametrize(("top_p", "num_kept"), [(0.49, 1), (0.6, 2), (0.9, 3), (1.0, 3)])
def test_top_p_keeps_the_token_that_crosses_it(top_p, num_kept):
    assert sum(kept([0.5, 0.3, 0.2], top_p=top_p)) == num_kept


@pytest.mark.parametrize(("top_p", "num_kept"), [(0.5, 1), (0.6, 2), (0.99, 2)])
def test_top_p_works_on_what_top_k_left(top_p, num_kept):
    # Of all four, the best alone has 0.4 < 0.6; of the best two it has 0.57, so the second is kept; with a
    # top_p of 0.5 it alone crosses.
    assert sum(kept([0.4, 0.3, 0.2, 0.1], top_k=2, top_p=top_p)) == num_kept


def test_a_token_that_cannot_come_changes_nothing():
    assert kept([0.7, 0.3, 0.0, 0.0], top_k=4, top_p=0.9) == [True, True, False, False]


@pytest.mark.parametrize("rows", [1, 64])
def test_values_are_sorted_as_torch_sorts_them(rows):
    x = torch.randn(rows, 1000, generator=torch.Generator().manual_seed(2))
    assert torch.equal(sort_descending(x), x.sort(dim=-1, descending=True).values)


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
