"""Products by oneDNN are PyTorch's own, forward and backward."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from kronos_model.finetuning.stages import cpu_products
from kronos_model.finetuning.stages.cpu_products import OneDnnProducts, fast_products, is_onednn_faster

CPU = torch.device("cpu")
AMD = {"cpu_name": "AMD EPYC", "avx512_f": True}

needs_onednn = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="PyTorch was built without oneDNN: run it on x86-64"
)


@pytest.fixture(autouse=True)
def without_cached_answer():
    is_onednn_faster.cache_clear()
    yield
    is_onednn_faster.cache_clear()


@needs_onednn
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1,), (7,), (2, 5), (2, 3, 4)])
def test_results_and_gradients_are_the_same(shape, bias, monkeypatch):
    torch.manual_seed(0)
    layer = nn.Linear(12, 5, bias=bias)
    x = torch.randn(*shape, 12, requires_grad=True)
    target = torch.randn(*shape, 5)

    def all_of_it():
        layer.zero_grad()
        x.grad = None
        y = layer(x)
        F.mse_loss(y, target).backward()
        return [y.detach(), x.grad, *(parameter.grad for parameter in layer.parameters())]

    theirs = all_of_it()
    used = []
    product = cpu_products.onednn_product
    monkeypatch.setattr(cpu_products, "onednn_product", lambda *args: used.append(1) or product(*args))
    with OneDnnProducts():
        ours = all_of_it()
    assert len(used) == 3  # forward, and both gradients
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@needs_onednn
def test_only_the_gradients_that_are_needed_are_computed():
    layer = nn.Linear(3, 2).requires_grad_(False)
    x = torch.randn(4, 3, requires_grad=True)
    with OneDnnProducts():
        layer(x).sum().backward()
        with torch.no_grad():
            assert not layer(x).requires_grad
    assert layer.weight.grad is None
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(4, 3))


@pytest.mark.parametrize("case", ["float64", "bfloat16", "autocast", "vector", "empty"])
def test_other_products_are_unchanged(case, monkeypatch):
    def refuse(*_):
        raise AssertionError("not for this")

    monkeypatch.setattr(cpu_products, "onednn_product", refuse)
    dtype = getattr(torch, case) if case in ("float64", "bfloat16") else torch.float32
    layer = nn.Linear(3, 2, dtype=dtype)
    x = torch.ones({"vector": (3,), "empty": (0, 3)}.get(case, (4, 3)), dtype=dtype)
    with OneDnnProducts(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=case == "autocast"):
        assert layer(x).dtype is (torch.bfloat16 if case == "autocast" else dtype)


@pytest.mark.parametrize(
    ("capabilities", "is_faster"),
    [
        (AMD, True),
        ({"cpu_name": "Intel Xeon", "avx512_f": True}, False),
        ({"cpu_name": "AMD EPYC", "avx512_f": False}, False),
        ({}, False),
    ],
)
@needs_onednn
def test_it_is_used_where_mkl_leaves_avx_512_unused(capabilities, is_faster, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert is_onednn_faster() == is_faster
    assert isinstance(fast_products(CPU), OneDnnProducts) == is_faster


@pytest.mark.parametrize("error", [AttributeError, RuntimeError])
def test_without_the_operator_nothing_changes(error, monkeypatch):
    def missing(*_):
        raise error("no such operator")

    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: AMD)
    monkeypatch.setattr(cpu_products, "onednn_product", missing)
    assert not is_onednn_faster()
    assert not isinstance(fast_products(CPU), OneDnnProducts)


def test_it_applies_only_to_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: AMD)
    assert not isinstance(fast_products(torch.device("cuda", 0)), OneDnnProducts)
