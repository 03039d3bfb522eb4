"""The published shapes with random weights. Speed does not depend on the values."""

from pathlib import Path
from typing import Any, Final

import torch

from kronos_model.model import Kronos
from kronos_model.tokenizer import KronosTokenizer

MODELS: Final[dict[str, dict[str, int]]] = {
    "mini": {"n_layers": 4, "d_model": 256, "n_heads": 4, "ff_dim": 512},
    "small": {"n_layers": 8, "d_model": 512, "n_heads": 8, "ff_dim": 1024},
    "base": {"n_layers": 12, "d_model": 832, "n_heads": 16, "ff_dim": 2048},
}
TOKENIZER: Final = {"n_enc_layers": 4, "n_dec_layers": 4, "d_model": 256, "n_heads": 4, "ff_dim": 512}
QUANTIZER: Final[dict[str, Any]] = {"beta": 0.05, "gamma0": 1, "gamma": 1.1, "zeta": 0.05, "group_size": 4}
BITS: Final = {"s1_bits": 10, "s2_bits": 10}
NO_DROPOUT: Final = {"ffn_dropout_p": 0.0, "attn_dropout_p": 0.0, "resid_dropout_p": 0.0}


def random_pair(shape: str, seed: int = 0) -> tuple[Kronos, KronosTokenizer]:
    """A model of the published shape and a tokenizer, in eval mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Kronos(**MODELS[shape], **BITS, **NO_DROPOUT, token_dropout_p=0.0, learn_te=True)
        tokenizer = KronosTokenizer(d_in=6, **TOKENIZER, **QUANTIZER, **BITS, **NO_DROPOUT)
    return model.eval(), tokenizer.eval()


def save_random_pair(shape: str, folder: Path) -> dict[str, str]:
    """Save a random pair below ``folder``, and return the settings that choose it."""
    paths = {"KRONOS_MODEL": str(folder / "model"), "KRONOS_TOKENIZER": str(folder / "tokenizer")}
    for module, path in zip(random_pair(shape), paths.values(), strict=True):
        module.save_pretrained(path)
    return paths
