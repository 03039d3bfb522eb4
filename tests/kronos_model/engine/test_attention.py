"""Attention over parts, merged, is attention over the whole; with and without the kernel."""

import math

import pytest
import torch
from torch.nn import functional as F

from kronos_model.engine.transformer import attention
from kronos_model.engine.transformer.attention import attend, merge


@pytest.fixture(params=["kernel", "products", pytest.param("cuda", marks=pytest.mark.gpu)], autouse=True)
def device(request, monkeypatch) -> torch.device:
    if request.param == "cuda":
        return torch.device("cuda")
    if request.param == "products":
        monkeypatch.setattr(attention, "has_kernel", lambda device: False)
    elif not attention.has_kernel(torch.device("cpu")):
        pytest.skip("PyTorch lacks the attention kernel: run it with the pinned PyTorch")
    return torch.device("cpu")


@pytest.fixture
def qkv(device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 3, 5, 8, generator=generator)
    k, v = torch.randn(2, 2, 3, 9, 8, generator=generator)
    return q.to(device), k.to(device), v.to(device)


def test_attention_is_pytorchs(qkv):
    torch.testing.assert_close(attend(*qkv).out, F.scaled_dot_product_attention(*qkv))


def test_causal_attention_sees_nothing_that_comes_after(qkv):
    q, k, v = (x[:, :, :5] for x in qkv)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(attend(q, k, v, is_causal=True).out, expected)


def test_a_mask_hides(qkv, device):
    mask = torch.zeros(2, 1, 1, 9, device=device)
    mask[1, ..., 4:] = -math.inf
    mixed = attend(*qkv, mask)
    q, k, v = qkv
    torch.testing.assert_close(mixed.out[1:], attend(q[1:], k[1:, :, :4], v[1:, :, :4]).out)
    torch.testing.assert_close(mixed.out[:1], attend(q[:1], k[:1], v[:1]).out)


@pytest.mark.parametrize("cut", [1, 4, 8])
def test_parts_merge_to_the_whole(qkv, cut):
    q, k, v = qkv
    first = attend(q, k[:, :, :cut], v[:, :, :cut])
    second = attend(q, k[:, :, cut:], v[:, :, cut:])
    torch.testing.assert_close(
        merge(first.out, first.weight, second.out, second.weight), F.scaled_dot_product_attention(q, k, v)
    )


@pytest.mark.parametrize("masked", [False, True])
def test_scores_of_bfloat16_are_not_rounded(device, masked):
    """Scores near 40, which bfloat16 rounds by up to 0.12, against the same in float64."""
    generator = torch.Generator().manual_seed(0)
    q = 4 * torch.randn(2, 3, 4, 64, generator=generator)
    k, v = torch.randn(2, 2, 3, 100, 64, generator=generator)
    q, k, v = (x.to(device, torch.bfloat16) for x in (q, 4 * k, v))
    mask = torch.zeros(2, 1, 1, 100, device=device)
    if masked:
        mask[1, ..., 37:] = -math.inf
    ours = attend(q, k, v, mask if masked else None)
    scores = q.double() @ k.double().mT / 8 + mask
    assert scores[0].abs().max() > 32
    torch.testing.assert_close(ours.weight.double(), scores.logsumexp(-1), rtol=0, atol=1e-4)
    torch.testing.assert_close(ours.out.double(), scores.softmax(-1) @ v.double(), rtol=0.01, atol=0.01)


@pytest.mark.parametrize("num_series", [1, 2])
@pytest.mark.parametrize("max_scores", [8, 60, 10**6])
@pytest.mark.parametrize("masked", ["rows", "keys", "causal", "nothing"])
def test_no_product_has_more_scores_than_the_bound(qkv, num_series, max_scores, masked, monkeypatch):
    q, k, v = (x[:num_series] for x in qkv)
    mask = None
    if masked in ("rows", "keys"):
        mask = torch.randn(num_series, 1, 5 if masked == "rows" else 1, 9).to(q.device)
    if masked == "causal":
        k, v = (x[:, :, :5] for x in (k, v))
    whole = attend(q, k, v, mask, is_causal=masked == "causal")
    monkeypatch.setattr(attention, "has_kernel", lambda device: False)
    monkeypatch.setattr(attention, "MAX_SCORES", max_scores)
    in_parts = attend(q, k, v, mask, is_causal=masked == "causal")
    torch.testing.assert_close((in_parts.out, in_parts.weight), (whole.out, whole.weight))


@pytest.mark.parametrize("num_series", [1, 3])
def test_the_largest_product_is_within_the_bound(num_series, monkeypatch):
    sizes: list[int] = []
    softmax = torch.Tensor.softmax
    monkeypatch.setattr(torch.Tensor, "softmax", lambda x, dim: (sizes.append(x.numel()), softmax(x, dim))[1])
    monkeypatch.setattr(attention, "has_kernel", lambda device: False)
    monkeypatch.setattr(attention, "MAX_SCORES", 1000)
    q, k = torch.randn(num_series, 2, 100, 4), torch.randn(num_series, 2, 100, 4)
    attend(q, k, k)
    assert max(sizes) <= 1000
    assert sum(sizes) == num_series * 2 * 100 * 100
