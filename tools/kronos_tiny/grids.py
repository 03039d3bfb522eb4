"""The bundled pair before training: a tokenizer that is computed from grids, and a model in their order.

A tokenizer of this size, trained by gradient, is too rough: in a long lookback its error is as large as the
change from bar to bar. So each feature of a bar has a grid of values, and the code of the nearest one is its
part of the token. The feed-forward layer of one block holds the grids. A sum of ramps, one at each value, is
a piecewise linear function. For each bit of the code there is one that is +1 or −1 at each value, as the bit
is there, and so changes sign half way between two values. On the way back, ramps at each code turn it into
the value. Attention adds nothing. The result is an ordinary ``KronosTokenizer``.

Training random embeddings of the model would first have to find which tokens are neighbours. Here the
embedding of a value is its sine and cosine at many wavelengths, and so is its row in the head. The product
of two of them is largest for equal values and falls with their distance: the untrained model expects a close
near the last one.
"""

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kronos_model.bars.columns import AMOUNT, CLOSE, COLUMNS, HIGH, LOW, OPEN, VOLUME
from kronos_model.layers import FeedForward
from kronos_model.model import Kronos
from kronos_model.seeds import seed_from_text
from kronos_model.tokenizer import KronosTokenizer

Array = NDArray[np.float64]

FEATURES: Final = ("close", "body", "range", "tilt", "volume")
NUM_BITS: Final = (8, 3, 3, 1, 3)
"""Bits of each feature. The close alone is the coarse token, the rest of the bar is the fine one."""
S1_BITS, S2_BITS = NUM_BITS[0], sum(NUM_BITS[1:])

CONSTANT: Final = 64.0
"""Value of channel 0. It is large: the block's norm scales all bars alike, within 1 % at the scale's ends."""
STEEPNESS: Final = 24.0
"""Steepness of a ramp's bend, over the smallest step of its grid: silu is then as good as a ramp."""
NUM_HEADS: Final = 4

OUTPUT: Final = 1 + len(FEATURES)
"""The first channel that a block writes; before it are the constant and the features."""

CLOSE_LIMIT, CLOSE_CENTRE = 5.2, 3.0
"""The close's grid ends beyond the clipped scale and is finer in the middle: a hyperbolic sine."""

D_MODEL: Final = 64
CLOSE_WAVELENGTHS: Final = (0.12, 40.0)
"""The shortest and the longest, in standard deviations of the lookback's close."""
PLACE_WAVELENGTHS: Final = (2.5, 40.0)
"""The same for the other features, in places on their grids."""


def features_of(bars: Array) -> Array:
    """Features of scaled bars, (..., 6) → (..., 5)."""
    return bars @ _feature_matrix().T


def _feature_matrix() -> Array:
    """From bars to features, (5, 6): the tilt is the middle of high and low above that of open and close."""
    matrix = np.zeros((len(FEATURES), len(COLUMNS)))
    matrix[0, CLOSE] = 1
    matrix[1, [OPEN, CLOSE]] = 1, -1
    matrix[2, [HIGH, LOW]] = 1, -1
    matrix[3, [HIGH, LOW, OPEN, CLOSE]] = 0.5, 0.5, -0.5, -0.5
    matrix[4, VOLUME] = 1
    return matrix


def _bar_matrix() -> Array:
    """From features to bars, (6, 5). The amount, which moves with the volume, is given its value."""
    matrix = np.zeros((len(COLUMNS), len(FEATURES)))
    matrix[[CLOSE, OPEN, HIGH, LOW], 0] = 1
    matrix[[OPEN, HIGH, LOW], 1] = 1, 0.5, 0.5
    matrix[[HIGH, LOW], 2] = 0.5, -0.5
    matrix[[HIGH, LOW], 3] = 1
    matrix[[VOLUME, AMOUNT], 4] = 1
    return matrix


def fit_grids(bars: Array) -> list[Array]:
    """A grid for each feature, from scaled bars (N, 6): 1-D k-means of square roots, but for the close."""
    steps = np.linspace(-1, 1, 2**S1_BITS) * np.arcsinh(CLOSE_LIMIT / CLOSE_CENTRE)
    grids = [CLOSE_CENTRE * np.sinh(steps)]
    for values, num_bits in zip(features_of(bars).T[1:], NUM_BITS[1:], strict=True):
        values = values[values != 0]  # markets without volume, bars without trades
        roots = np.sort(np.sign(values) * np.sqrt(np.abs(values)))
        centres = np.quantile(roots, (np.arange(2**num_bits) + 0.5) / 2**num_bits)
        for _ in range(100):
            ends = np.searchsorted(roots, (centres[1:] + centres[:-1]) / 2)
            centres = np.array([part.mean() for part in np.split(roots, ends)])
        grids.append(np.sign(centres) * centres**2)
    return grids


def grid_tokenizer(grids: list[Array]) -> KronosTokenizer:
    """The tokenizer with these grids, each of 2^bits increasing values."""
    num_bits, num_features = sum(NUM_BITS), len(FEATURES)
    width = -(-(1 + num_features + num_bits) // (2 * NUM_HEADS)) * 2 * NUM_HEADS
    tokenizer = KronosTokenizer(
        d_in=len(COLUMNS), d_model=width, n_heads=NUM_HEADS, ff_dim=sum(map(len, grids)), n_enc_layers=2,
        n_dec_layers=2, ffn_dropout_p=0.0, attn_dropout_p=0.0, resid_dropout_p=0.0, s1_bits=S1_BITS,
        s2_bits=S2_BITS, beta=0.05, gamma0=1.0, gamma=1.1, zeta=0.05, group_size=num_bits,
    )  # fmt: skip
    inputs, outputs = slice(1, OUTPUT), slice(OUTPUT, OUTPUT + num_bits)
    orders = [place_of_code(bits) for bits in NUM_BITS]
    signs = [_signs(np.argsort(order), bits) for order, bits in zip(orders, NUM_BITS, strict=True)]
    # ±1/√D of each bit to the code as a number between −1/2 and 1/2.
    worth = torch.zeros(num_features, num_bits)
    worth[np.repeat(np.arange(num_features), NUM_BITS), np.arange(num_bits)] = _tensor(
        np.concatenate([2.0 ** (np.arange(bits) - bits - 1) for bits in NUM_BITS])
    )
    numbers = [(np.arange(len(grid)) + 0.5) / len(grid) - 0.5 for grid in grids]
    values = [grid[order][:, None] for grid, order in zip(grids, orders, strict=True)]
    first_signs, first_values = (np.concatenate([rows[0] for rows in part]) for part in (signs, values))
    with torch.no_grad():
        for name, parameter in tokenizer.named_parameters():
            if "norm" not in name:
                parameter.zero_()
        tokenizer.embed.bias[0] = CONSTANT
        tokenizer.embed.weight[inputs] = _tensor(_feature_matrix())
        _set_ramps(tokenizer.encoder, grids, signs)
        tokenizer.quant_embed.weight[:, outputs] = torch.eye(num_bits)
        tokenizer.quant_embed.bias[:] = _tensor(first_signs)

        for part in (tokenizer.post_quant_embed, tokenizer.post_quant_embed_pre):
            part.bias[0] = CONSTANT
            part.weight[inputs] = worth[:, : part.in_features] * num_bits**0.5
        _set_ramps(tokenizer.decoder, numbers, values)
        tokenizer.head.weight[:, OUTPUT : OUTPUT + num_features] = _tensor(_bar_matrix())
        tokenizer.head.bias[:] = _tensor(_bar_matrix() @ first_values)
    return tokenizer.eval()


def place_of_code(num_bits: int) -> NDArray[np.int64]:
    """The place on its grid of each code, (2^bits,): a Gray code, so neighbours differ in one bit.

    A value half way between two of the grid is then one of the two, however its bits are rounded.
    """
    places = np.arange(2**num_bits)
    return np.argsort(places ^ (places >> 1))


def _signs(codes: NDArray[np.int64], num_bits: int) -> Array:
    """The bits of codes as ±1, bit 0 first, (N, num_bits)."""
    bits = codes[:, None] // 2 ** np.arange(num_bits) % 2
    return bits * np.float64(2) - 1


def _set_ramps(blocks: Iterable[nn.Module], knots: list[Array], targets: list[Array]) -> None:
    """Make the only block add, for each feature, a piecewise linear function through (knot, target).

    It is 0 up to the first knot, and level after the last one. The ``targets`` of a feature, (M, n), are n
    functions, in the next n channels from ``OUTPUT`` on.
    """
    (ffn,) = (block.get_submodule("ffn") for block in blocks)
    assert isinstance(ffn, FeedForward)
    norm = np.sqrt(ffn.w1.in_features) / CONSTANT  # by which the block's norm scales every channel
    row, out = 0, OUTPUT
    for channel, (knot, target) in enumerate(zip(knots, targets, strict=True), start=1):
        rows, outs = slice(row, row + len(knot)), slice(out, out + target.shape[1])
        steep = STEEPNESS / np.diff(knot).min()
        slopes = np.diff(target, axis=0) / np.diff(knot)[:, None]  # (M − 1, n)
        bends = np.diff(slopes, axis=0, prepend=0, append=0)  # (M, n)
        ffn.w1.weight[rows, channel] = steep / norm
        ffn.w1.weight[rows, 0] = _tensor(-steep * knot / (norm * CONSTANT))
        ffn.w3.weight[rows, 0] = 1 / (norm * CONSTANT)
        ffn.w2.weight[outs, rows] = _tensor(bends.T / steep)
        row, out = rows.stop, outs.stop


def _tensor(values: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).float()


def grid_model(closes: Array) -> Kronos:
    """The untrained model for closes on a grid, (2^S1_BITS,); always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed_from_text("grid_model"))
        model = Kronos(
            s1_bits=S1_BITS, s2_bits=S2_BITS, n_layers=3, d_model=D_MODEL, n_heads=4, ff_dim=192,
            ffn_dropout_p=0.0, attn_dropout_p=0.0, resid_dropout_p=0.0, token_dropout_p=0.0, learn_te=True,
        )  # fmt: skip
    close_waves = _waves(closes[place_of_code(S1_BITS)], CLOSE_WAVELENGTHS, D_MODEL)
    tokens, shape_waves = np.arange(2**S2_BITS), []
    for num_bits in NUM_BITS[1:]:  # the token holds the first feature in its lowest bits
        place = place_of_code(num_bits)[tokens % 2**num_bits].astype(np.float64)
        shape_waves.append(_waves(place, PLACE_WAVELENGTHS, D_MODEL // (len(NUM_BITS) - 1)))
        tokens = tokens >> num_bits
    fine_waves = np.concatenate(shape_waves, axis=1) / len(shape_waves) ** 0.5
    with torch.no_grad():
        for waves, tables in (
            (close_waves, (model.embedding.emb_s1, model.head.proj_s1)),
            (fine_waves, (model.embedding.emb_s2, model.head.proj_s2)),
        ):
            for table in tables:
                table.weight.copy_(torch.from_numpy(waves))
        model.embedding.fusion_proj.weight[:, :D_MODEL] = torch.eye(D_MODEL)
    return model


def _waves(values: Array, wavelengths: tuple[float, float], width: int) -> Array:
    """Sines and cosines of values (N,) as rows of length 1, (N, width)."""
    angles = values[:, None] * 2 * np.pi / np.geomspace(*wavelengths, width // 2)
    waves: Array = np.concatenate([np.sin(angles), np.cos(angles)], axis=1) * (2 / width) ** 0.5
    return waves
