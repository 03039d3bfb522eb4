"""The engine's linear layers give what PyTorch's give, reordered or not."""

import pytest
import torch
from torch import nn

from kronos_model.engine import linear
from kronos_model.engine.linear import FusedLinear


@pytest.fixture(params=[True, False], ids=["reordered", "fallback"])
def reordering(request, monkeypatch) -> bool:
    if request.param:
        if not torch.backends.mkldnn.is_available():
            pytest.skip("this PyTorch has no oneDNN")
    else:
        monkeypatch.setattr(linear, "_reorder", lambda weight: None)
    return request.param


@torch.inference_mode()
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 2, 17, 130])
def test_fused_layers_give_what_each_gives(reordering, rows, bias):
    layers = [nn.Linear(24, outs, bias=bias) for outs in (8, 24, 7)]
    fused = FusedLinear(*layers)
    assert (fused._reordered is not None) == reordering
    x = torch.randn(rows, 24)
    expected = torch.cat([layer(x) for layer in layers], dim=-1)
    torch.testing.assert_close(fused(x), expected, rtol=1e-5, atol=1e-6)


def test_operators_that_are_missing_leave_the_fallback(monkeypatch):
    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", None, raising=False)
    monkeypatch.delattr(torch.ops.mkldnn, "_reorder_linear_weight")
    monkeypatch.setattr(type(torch.ops.mkldnn), "__getattr__", _missing)
    fused = FusedLinear(nn.Linear(4, 4))
    assert fused._reordered is None


def _missing(self: object, name: str) -> None:
    raise AttributeError(name)


def test_layers_with_and_without_bias_are_not_fused():
    with pytest.raises(ValueError, match="bias"):
        FusedLinear(nn.Linear(4, 4), nn.Linear(4, 4, bias=False))
