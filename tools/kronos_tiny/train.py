"""Make the bundled checkpoint again: ``python -m tools.kronos_tiny.train``.

It writes candles of synthetic markets, computes the tokenizer from them, trains the model as configured in
``kronos-tiny.yaml`` with the finetuning code, sharpens it, tests it on unseen instruments, and replaces the
bundled checkpoint. The weights depend on the config, and in their last digits on PyTorch's version and the
processor.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from kronos_model.bars.columns import CLOSE, Scaling, time_features, to_bars
from kronos_model.bars.synthetic import Candles
from kronos_model.checkpoints.names import BUNDLED_FOLDER
from kronos_model.finetuning.config import FinetuneConfig, load_config
from kronos_model.finetuning.reporting import Listener, ProgressBar
from kronos_model.finetuning.run import finetune
from kronos_model.finetuning.run_folder import RunFolder
from kronos_model.finetuning.stages.stage import PredictorStage
from kronos_model.model import Kronos
from kronos_model.model_pair import load_pair
from kronos_model.tokenizer import KronosTokenizer
from tools.kronos_tiny.grids import fit_grids, grid_model, grid_tokenizer
from tools.kronos_tiny.held_out import NAME, compare_held_out, held_out_windows, summary
from tools.kronos_tiny.market import market_candles

CONFIG: Final = Path(__file__).with_name(f"{NAME}.yaml")
COMMAND: Final = "python -m tools.kronos_tiny.train"

SEEDS: Final = range(1_000, 1_800)
"""The instruments to train on."""
NUM_BARS: Final = 2_000
GRID_LOOKBACKS: Final = (32, 64, 128, 256, 416)
"""Lookbacks of the windows that the tokenizer is computed from: one window each for every instrument."""

FACTORS: Final = (0.95, 1.0, 1.05, 1.1, 1.15, 1.2)
SHARPENING_LOOKBACKS: Final = (48, 64, 128, 256, 416)
SHARPENING_SEED: Final = 11
"""The seed of the instruments; see ``held_out_windows``."""
NUM_TARGETS: Final = 48


def train(
    folder: Path,
    run: Path,
    *,
    seeds: range = SEEDS,
    num_bars: int = NUM_BARS,
    overrides: Sequence[str] = (),
    num_sharpening: int = 96,
    listeners: Sequence[Listener] = (),
) -> dict[str, Any]:
    """Train in the folder ``run``, or resume the run there, and write the checkpoint to ``folder``.

    ``overrides`` are those of ``load_config``, ``num_sharpening`` the windows of ``sharpen``. Returns the
    content of the checkpoint's ``metadata.json``.
    """
    data, start = run / "candles", run / "start"
    data.mkdir(parents=True, exist_ok=True)
    instruments = [market_candles(seed, num_bars) for seed in seeds]
    for seed, candles in zip(seeds, instruments, strict=True):
        pd.DataFrame(candles.as_dict()).to_parquet(data / f"synthetic-{seed}.parquet")
    config = config_of(data, start, overrides)
    grids = fit_grids(_scaled(instruments, config))
    grid_tokenizer(grids).save_pretrained(start / "tokenizer")
    grid_model(grids[0]).save_pretrained(start / "model")
    result = finetune(config, run, listeners=listeners)
    shutil.copytree(result.checkpoint, folder, dirs_exist_ok=True)
    pair = load_pair(folder)
    factor = sharpen(pair.model, pair.tokenizer, config.clip, num_sharpening)
    pair.model.save_pretrained(folder / "model")
    # A local path means nothing on another machine.
    places = f"market_candles, seeds {seeds[0]} to {seeds[-1]}", "grid_model, grid_tokenizer"
    named = config_of(*places, overrides)
    metadata = {
        **result.metadata,
        "config": named.model_dump(mode="json"),
        "command": COMMAND,
        "sharpened": factor,
        "for_trying": True,
    }
    metadata["parent"] |= {"model": named.start.model, "tokenizer": named.start.model}
    RunFolder(folder).write("metadata.json", metadata)
    return metadata


def config_of(data: Path | str, start: Path | str, overrides: Sequence[str] = ()) -> FinetuneConfig:
    """The config with the places of candles and starting weights."""
    places = [
        f"{name}={json.dumps(str(place))}" for name, place in (("data.path", data), ("start.model", start))
    ]
    return load_config(CONFIG, [*places, *overrides])


def _scaled(instruments: Sequence[Candles], config: FinetuneConfig) -> np.ndarray:
    """Scaled bars of the last windows of all instruments, (N, 6)."""
    scaled = []
    for candles in instruments:
        for lookback in GRID_LOOKBACKS:
            bars = to_bars(candles.columns)[-lookback - config.data.pred_len :]
            scaled.append(Scaling.fit(bars[:lookback]).apply(bars, config.clip))
    return np.concatenate(scaled).astype(np.float64)


def sharpen(model: Kronos, tokenizer: KronosTokenizer, clip: float, num_windows: int) -> float:
    """Multiply the coarse token's head by the best factor, in place, and return it.

    A model that was trained for minutes is not sure enough, most of all after long lookbacks, where the
    changes are small against the scale. The factor is the one whose forecasts of the next close have the
    least CRPS (Gneiting and Raftery, Strictly proper scoring rules, 2007) on instruments that neither
    training nor test has.
    """
    model.eval()
    losses = torch.stack(
        [_losses(model, tokenizer, clip, num_windows, lookback) for lookback in SHARPENING_LOOKBACKS]
    )
    factor = FACTORS[int(losses.mean(dim=0).argmin())]
    with torch.no_grad():
        for parameter in model.head.proj_s1.parameters():
            parameter.mul_(factor)
    return factor


@torch.inference_mode()
def _losses(
    model: Kronos, tokenizer: KronosTokenizer, clip: float, num_windows: int, lookback: int
) -> Tensor:
    """Mean CRPS of the next close with each factor, (F,)."""
    windows = held_out_windows(SHARPENING_SEED, num_windows, lookback, NUM_TARGETS)
    x = torch.from_numpy(Scaling.fit(windows.bars[:, :lookback]).apply(windows.bars, clip))
    stamp = torch.from_numpy(np.stack([time_features(wall) for wall in windows.wall]))
    stage = PredictorStage(model, tokenizer, "teacher_forced", NUM_TARGETS)
    (logits, _), _ = stage.predict(model, {"x": x, "stamp": stamp})  # (W, N, vocabulary)

    codes = torch.arange(2**tokenizer.s1_bits)[None]
    closes, order = tokenizer.decode((codes, torch.zeros_like(codes)))[0, :, CLOSE].sort()
    is_above = closes[:-1] >= x[:, -NUM_TARGETS:, CLOSE, None]
    one_bar = x[:, :lookback, CLOSE].diff(dim=1).abs().mean(dim=1) + 1e-3  # (W,)
    losses = []
    for factor in FACTORS:
        cumulated = (logits * factor).softmax(-1)[..., order].cumsum(-1)[..., :-1]
        crps = ((cumulated - is_above.float()).square() * closes.diff()).sum(-1)
        losses.append((crps / one_bar[:, None]).mean())
    return torch.stack(losses)


def main() -> None:
    """Run the command line of this module."""
    parser = argparse.ArgumentParser(description=f"Train the bundled checkpoint {NAME} again.")
    target = BUNDLED_FOLDER / NAME
    parser.add_argument("--folder", type=Path, default=target, help="folder to write (default: %(default)s)")
    parser.add_argument(
        "--run", type=Path, help="folder of the run, resumed if it holds one (default: a temporary folder)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        run = options.run or Path(temporary)
        metadata = train(options.folder, run, listeners=[ProgressBar(sys.stderr)])
    held_out = compare_held_out(options.folder)
    RunFolder(options.folder).write("metadata.json", {**metadata, "held_out": held_out})
    sys.stderr.write(summary(held_out) + "\n")


if __name__ == "__main__":
    main()
