"""Make the bundled checkpoint ``kronos-tiny`` anew: ``python -m kronos_model.checkpoints.initialise``.

The result depends on the seed and on PyTorch's version alone.
"""

import argparse
import json
from pathlib import Path

import torch

from kronos_model.checkpoint_source import BUNDLED_FOLDER
from kronos_model.model import Kronos
from kronos_model.tokenizer import KronosTokenizer

NAME = "kronos-tiny"
SEED = 0

TOKENIZER = {
    "d_in": 6,
    "d_model": 48,
    "n_heads": 4,
    "ff_dim": 96,
    "n_enc_layers": 3,
    "n_dec_layers": 3,
    "ffn_dropout_p": 0.0,
    "attn_dropout_p": 0.0,
    "resid_dropout_p": 0.0,
    "s1_bits": 7,
    "s2_bits": 7,
    "beta": 0.05,
    "gamma0": 1.0,
    "gamma": 1.1,
    "zeta": 0.05,
    "group_size": 7,
}
MODEL = {
    "s1_bits": 7,
    "s2_bits": 7,
    "n_layers": 3,
    "d_model": 80,
    "n_heads": 4,
    "ff_dim": 160,
    "ffn_dropout_p": 0.0,
    "attn_dropout_p": 0.0,
    "resid_dropout_p": 0.0,
    "token_dropout_p": 0.0,
    "learn_te": True,
}


def initialise(folder: Path, *, seed: int = SEED) -> None:
    """Write an untrained pair to a folder, ``model/`` and ``tokenizer/``, and say so in ``metadata.json``."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        tokenizer = KronosTokenizer(**TOKENIZER)  # type: ignore[arg-type]  # one dict of ints and floats
        model = Kronos(**MODEL)  # type: ignore[arg-type]
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "tokenizer")
    metadata = {"seed": seed, "trained": False}
    (folder / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Command line of this module."""
    parser = argparse.ArgumentParser(description=f"Make the untrained checkpoint {NAME} anew.")
    parser.add_argument(
        "--folder", type=Path, default=BUNDLED_FOLDER / NAME, help="where to (default: %(default)s)"
    )
    initialise(parser.parse_args().folder)


if __name__ == "__main__":
    main()
