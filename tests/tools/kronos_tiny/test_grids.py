"""The computed tokenizer, and the untrained model on its grids."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from kronos_model.tokenizer import KronosTokenizer
from tools.kronos_tiny.grids import (
    NUM_BITS,
    Array,
    features_of,
    fit_grids,
    grid_model,
    grid_tokenizer,
    place_of_code,
)


@pytest.fixture(scope="module")
def bars() -> Array:
    """Scaled bars, (N, 6): closes over the whole scale, opens, highs and lows near them."""
    rng = np.random.default_rng(0)
    close = rng.uniform(-4.9, 4.9, 3000)
    around = close[:, None] + rng.standard_t(3, (3000, 3)) * 0.2
    volume = rng.standard_normal((3000, 1)) ** 2 - 1
    return np.clip(np.concatenate([around, close[:, None], volume, volume], axis=1), -5, 5)


@pytest.fixture(scope="module")
def grids(bars: Array) -> list[Array]:
    return fit_grids(bars)


@pytest.fixture(scope="module")
def tokenizer(grids: list[Array]) -> KronosTokenizer:
    return grid_tokenizer(grids)


def nearest(bars: Array, grids: list[Array]) -> Array:
    """The number of the nearest value of each feature, (N, 5)."""
    pairs = zip(grids, features_of(bars).T, strict=True)
    return np.stack([np.abs(grid - values[:, None]).argmin(axis=1) for grid, values in pairs], axis=1)


def place(s1: Tensor, s2: Tensor, feature: int) -> NDArray[np.int64]:
    """The place on its grid that the tokens (N,) give a feature, (N,)."""
    code = s1 if feature == 0 else s2 >> sum(NUM_BITS[1:feature])
    return place_of_code(NUM_BITS[feature])[code.numpy() % 2 ** NUM_BITS[feature]]


@torch.inference_mode()
def test_tokens_are_the_numbers_of_the_nearest_values(
    tokenizer: KronosTokenizer, grids: list[Array], bars: Array
) -> None:
    s1, s2 = tokenizer.encode(torch.from_numpy(bars[None]).float())
    for feature, places in enumerate(nearest(bars, grids).T):
        found = place(s1[0], s2[0], feature)
        # The norm moves bars far from the middle by a hair, so those between two values may go to the other.
        assert (found == places).mean() > 0.98
        assert np.abs(found - places).max() <= 1


@torch.inference_mode()
def test_decoding_gives_the_values_back(tokenizer: KronosTokenizer, grids: list[Array], bars: Array) -> None:
    s1, s2 = tokenizer.encode(torch.from_numpy(bars[None]).float())
    features = features_of(tokenizer.decode((s1, s2))[0].numpy().astype(np.float64))
    for feature, grid in enumerate(grids):
        np.testing.assert_allclose(features[:, feature], grid[place(s1[0], s2[0], feature)], atol=0.01)
    coarse = tokenizer(torch.from_numpy(bars[None]).float())[0][0]
    np.testing.assert_allclose(coarse[0, :, 3], grids[0][place(s1[0], s2[0], 0)], atol=0.01)


@torch.inference_mode()
def test_the_untrained_model_expects_a_close_near_the_last(grids: list[Array]) -> None:
    model = grid_model(grids[0]).eval()
    s1 = torch.arange(2**8)[:, None]
    logits, _ = model.decode_s1(s1, torch.zeros_like(s1))
    closes = grids[0][place_of_code(8)]
    distance = np.abs(closes[logits[:, -1].argmax(-1)] - closes)
    assert np.median(distance) < 0.1
