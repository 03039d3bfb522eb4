"""The bundled model before its training: its tokens start in the order of their grids.

Training random embeddings would first have to find which tokens are neighbours. Here the embedding of a
value is its sine and cosine at many wavelengths, and so is its row in the head. The product of two of them is
largest for equal values and falls with their distance: the untrained model expects a close near the last one.
"""

from typing import Final

import numpy as np
import torch

from kronos_model.bundled.grid_tokenizer import NUM_BITS, S1_BITS, S2_BITS, Array, place_of_code
from kronos_model.model import Kronos
from kronos_model.seeds import seed_from_text

D_MODEL: Final = 64
CLOSE_WAVELENGTHS: Final = (0.12, 40.0)
"""The shortest and the longest, in standard deviations of the lookback's close."""
PLACE_WAVELENGTHS: Final = (2.5, 40.0)
"""The same for the other features, in places on their grids."""


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
