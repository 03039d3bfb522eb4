"""The engine's linear layers give what PyTorch's give, reordered or not."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from kronos_model.engine.transformer import linear
from kronos_model.engine.transformer.linear import Affine, FusedLinear


@pytest.fixture(params=[True, False], ids=["reordered", "fallback"])
def reordering(request, monkeypatch) -> None:
    if request.param:
        if not torch.backends.mkldnn.is_available():
            pytest.skip("PyTorch was built without oneDNN: run it on x86-64")
    else:
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)


@torch.inference_mode()
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 2, 17, 130, 512, 513, 1100])
def test_fused_layers_give_what_each_gives(reordering, rows, bias):
    layers = [nn.Linear(24, outs, bias=bias) for outs in (8, 24, 7)]
    fused = FusedLinear(*map(Affine.from_linear, layers))
    x = torch.randn(rows, 24)
    expected = torch.cat([layer(x) for layer in layers], dim=-1)
    torch.testing.assert_close(fused(x), expected, rtol=1e-5, atol=1e-6)


def test_rows_are_multiplied_in_few_numbers_of_them():
    """Each number of rows is a kernel that oneDNN never forgets."""
    given = {num_rows: linear.num_rows_for(num_rows) for num_rows in range(linear.MAX_ROWS + 1)}
    assert all(0 <= given[n] - n <= n / 8 for n in given)
    assert given[linear.MAX_ROWS] == linear.MAX_ROWS
    assert len(set(given.values()) - {0}) == 56


@torch.inference_mode()
@pytest.mark.parametrize("few_sizes", [False, True])
def test_no_other_numbers_of_rows_reach_onednn(monkeypatch, few_sizes):
    if not torch.backends.mkldnn.is_available():
        pytest.skip("PyTorch was built without oneDNN: run it on x86-64")
    fused, met = FusedLinear(Affine.from_linear(nn.Linear(4, 4)), few_sizes=few_sizes), set()
    multiply = linear._multiply

    def note(x, *more):
        met.add(x.shape[0])
        return multiply(x, *more)

    monkeypatch.setattr(linear, "_multiply", note)
    for num_rows in range(1, 3000, 7):
        assert fused(torch.ones(num_rows, 4)).shape == (num_rows, 4)
    assert met <= (
        {*linear.FEW_SIZES} if few_sizes else {linear.num_rows_for(n) for n in range(1, linear.MAX_ROWS + 1)}
    )


@torch.inference_mode()
def test_operators_that_are_missing_leave_the_fallback(monkeypatch):
    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", None, raising=False)
    monkeypatch.delattr(torch.ops.mkldnn, "_reorder_linear_weight")
    monkeypatch.setattr(type(torch.ops.mkldnn), "__getattr__", _missing)
    layer, x = nn.Linear(4, 4), torch.randn(3, 4)
    torch.testing.assert_close(FusedLinear(Affine.from_linear(layer))(x), layer(x))


def _missing(self: object, name: str) -> None:
    raise AttributeError(name)


def test_layers_with_and_without_bias_are_not_fused():
    with pytest.raises(ValueError, match="bias"):
        FusedLinear(Affine.from_linear(nn.Linear(4, 4)), Affine.from_linear(nn.Linear(4, 4, bias=False)))


@torch.inference_mode()
def test_a_scale_and_an_order_of_outputs_can_be_folded_in():
    layer, scale, order = nn.Linear(6, 4), torch.rand(6), torch.tensor([2, 0, 3, 1])
    x = torch.randn(3, 6)
    folded = FusedLinear(Affine.from_linear(layer).after_scale(scale).with_rows(order))
    torch.testing.assert_close(folded(x), layer(x * scale)[:, order])


@torch.inference_mode()
def test_bfloat16_multiplies_rounded_inputs_by_rounded_weights(reordering):
    layer, x = nn.Linear(32, 8), torch.randn(5, 32)
    ours = FusedLinear(Affine.from_linear(layer), dtype=torch.bfloat16)(x)
    assert ours.dtype is torch.bfloat16
    torch.testing.assert_close(ours.float(), layer(x), rtol=0.02, atol=0.02)
    assert not torch.equal(ours.float(), layer(x))


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 17, 1100])
def test_swish_is_part_of_the_product(reordering, rows, dtype):
    layer, x = nn.Linear(32, 8), torch.randn(rows, 32)
    ours = FusedLinear(Affine.from_linear(layer), dtype=dtype, swish=True)
    close = {} if dtype is torch.float32 else {"rtol": 0.02, "atol": 0.03}
    torch.testing.assert_close(ours(x).float(), F.silu(layer(x)), **close)
