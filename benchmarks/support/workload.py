"""What the engine is measured with: published shapes with random weights, and series of synthetic candles.

Speed does not depend on the values of weights.
"""

import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from kronos_model.bars.columns import time_features, to_bars
from kronos_model.bars.synthetic import candles
from kronos_model.engine.build import build_engine
from kronos_model.engine.engine import Engine
from kronos_model.engine.generation import SamplingParams, SeriesRequest
from kronos_model.model import Kronos
from kronos_model.model_pair import load_pair
from kronos_model.tokenizer import KronosTokenizer

MAX_CONTEXT, MAX_SLOTS = 512, 64

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


def run_s(engine: Engine, requests: Sequence[SeriesRequest]) -> float:
    """Seconds from submitting all series at once to the end of the last one."""
    start = time.perf_counter()
    engine.run(requests)
    return time.perf_counter() - start


def series_request(
    seed: int, lookback: int, horizon: int, sampling: SamplingParams | None = None
) -> SeriesRequest:
    """Instrument ``seed``: its first ``lookback`` bars, and ``horizon`` bars to forecast."""
    series = candles(seed, lookback + horizon)
    stamps = time_features(np.array(series.timestamps, dtype="datetime64[s]"))
    return SeriesRequest(
        bars=to_bars(series[:lookback].columns),
        stamps=stamps[:lookback],
        future_stamps=stamps[lookback:],
        sampling=sampling or SamplingParams(seed=seed),
    )


def engine_s(model: str, tokenizer: str, num_jobs: int, lookback: int, horizon: int) -> float:
    """Seconds of the engine for the series of ``num_jobs`` jobs at once. The first call also loads."""
    return run_s(
        _engine(model, tokenizer), [series_request(seed, lookback, horizon) for seed in range(num_jobs)]
    )


@cache
def _engine(model: str, tokenizer: str) -> Engine:
    pair = load_pair(model, tokenizer)
    return build_engine(pair.model, pair.tokenizer, max_context=MAX_CONTEXT, max_slots=MAX_SLOTS)
