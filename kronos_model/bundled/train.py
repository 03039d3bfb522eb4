"""Make the bundled checkpoint again: ``python -m kronos_model.bundled.train``.

It writes candles of synthetic markets, computes the tokenizer from them, trains the model as configured in
``kronos-tiny.yaml`` with the finetuning code, tests it on unseen instruments, and replaces the bundled
checkpoint. The weights depend on the config, and in their last digits on PyTorch's version and the processor.
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

from kronos_model.bars.columns import Scaling, to_bars
from kronos_model.bars.synthetic import Candles
from kronos_model.bundled.grid_model import grid_model
from kronos_model.bundled.grid_tokenizer import fit_grids, grid_tokenizer
from kronos_model.bundled.held_out import NAME, compare_held_out, summary
from kronos_model.bundled.market import market_candles
from kronos_model.bundled.sharpening import sharpen
from kronos_model.checkpoints.source import BUNDLED_FOLDER
from kronos_model.finetuning.config import FinetuneConfig, load_config
from kronos_model.finetuning.reporting import Listener, ProgressBar
from kronos_model.finetuning.run import finetune
from kronos_model.finetuning.run_folder import RunFolder
from kronos_model.model_pair import load_pair

CONFIG: Final = BUNDLED_FOLDER / f"{NAME}.yaml"
COMMAND: Final = "python -m kronos_model.bundled.train"

SEEDS: Final = range(1_000, 1_800)
"""The instruments to train on."""
NUM_BARS: Final = 2_000
GRID_LOOKBACKS: Final = (32, 64, 128, 256, 416)
"""Lookbacks of the windows that the tokenizer is computed from: one window each for every instrument."""


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
