"""Runs that take a second: tiny shapes from scratch, on a few synthetic candles."""

from pathlib import Path
from typing import Any

import pandas as pd

from kronos_model.bars.synthetic import candles
from kronos_model.finetuning.config import FinetuneConfig, parse_config

TOKENIZER = {
    "d_model": 16, "n_heads": 2, "ff_dim": 16, "n_enc_layers": 2, "n_dec_layers": 2,
    "s1_bits": 4, "s2_bits": 4, "group_size": 4,
}  # fmt: skip
MODEL = {"d_model": 16, "n_heads": 2, "ff_dim": 16, "n_layers": 1, "s1_bits": 4, "s2_bits": 4}
DROPOUT = {"ffn_dropout_p": 0.1, "attn_dropout_p": 0.1, "resid_dropout_p": 0.1}


def write_candles(folder: Path, num_instruments: int = 2, num_bars: int = 400) -> Path:
    """One CSV an instrument."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed in range(num_instruments):
        table = pd.DataFrame(candles(seed=seed, bars=num_bars).as_dict())
        table.to_csv(folder / f"synthetic-{seed}.csv", index=False)
    return folder


def tiny_config(data: Path, /, **fields: Any) -> FinetuneConfig:
    """Both stages, two epochs of four steps each; ``fields`` replace top-level ones."""
    stage = {"epochs": 2, "batch_size": 4, "windows_per_epoch": 16, "validation_windows": 8}
    return parse_config(
        {
            "data": {"path": str(data), "lookback": 24, "pred_len": 8},
            "start": {"model": MODEL | DROPOUT, "tokenizer": TOKENIZER | DROPOUT},
            "tokenizer": stage | {"optimiser": {"learning_rate": 1e-3}},
            "predictor": stage | {"optimiser": {"learning_rate": 1e-3}},
            "evaluation": {"windows": 0},
            "training_device": "cpu",
            **fields,
        }
    )
