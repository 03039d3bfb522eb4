import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kronos_model.tokenizer import BinarySphericalQuantizer, TokenQuantizer, bits_to_index, index_to_signs

LOSS = {"beta": 0.05, "gamma0": 1.0, "gamma": 1.1, "zeta": 0.05}


def quantizer(dim: int = 6, group_size: int = 3) -> BinarySphericalQuantizer:
    return BinarySphericalQuantizer(dim, **LOSS, group_size=group_size)


@given(st.integers(0, 2**10 - 1))
def test_index_to_signs_inverts_bits_to_index(index):
    signs = index_to_signs(torch.tensor(index), 10)
    assert bits_to_index(signs > 0) == index


def test_the_first_component_is_bit_0():
    assert bits_to_index(torch.tensor([True, False, False])) == 1


def test_a_zero_counts_as_minus_one():
    quantized, _ = quantizer()(torch.zeros(1, 1, 6))
    assert (quantized < 0).all()
    s1, s2 = TokenQuantizer(4, 2, quantizer()).encode(torch.zeros(1, 1, 6))
    assert (int(s1), int(s2)) == (0, 0)


def test_the_gradient_goes_straight_through_scaled():
    z = torch.randn(1, 2, 6, requires_grad=True)
    quantizer().quantize(z).sum().backward()
    assert torch.allclose(z.grad, torch.full_like(z, 1 / math.sqrt(6)))


@given(st.integers(0, 15), st.integers(0, 3))
def test_halves_join_and_split(s1, s2):
    tokens = TokenQuantizer(4, 2, quantizer())
    full = tokens.join(torch.tensor(s1), torch.tensor(s2))
    assert [int(half) for half in tokens.split(full)] == [s1, s2]
    vector = tokens.dequantize(torch.tensor(s1), torch.tensor(s2))
    assert bits_to_index(vector > 0) == full
    assert vector.norm() == pytest.approx(1)


def test_a_group_size_that_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="group_size 4"):
        quantizer(6, group_size=4)
