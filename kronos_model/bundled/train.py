"""Train the bundled checkpoint again: ``python -m kronos_model.bundled.train``.

It writes candles of synthetic instruments, trains on them as configured in ``kronos-tiny.yaml`` with the
finetuning code, tests the result on unseen instruments, and replaces the bundled checkpoint. The weights
depend on the config, and in their last digits on PyTorch's version and the processor.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pandas as pd

from kronos_model.bars.synthetic import candles
from kronos_model.bundled.held_out import NAME, compare_held_out
from kronos_model.checkpoints.source import BUNDLED_FOLDER
from kronos_model.finetuning.config import load_config
from kronos_model.finetuning.reporting import Listener, ProgressBar
from kronos_model.finetuning.run import finetune
from kronos_model.finetuning.run_folder import RunFolder

CONFIG: Final = BUNDLED_FOLDER / f"{NAME}.yaml"
COMMAND: Final = "python -m kronos_model.bundled.train"

SEEDS: Final = range(1_000, 1_064)
"""The instruments to train on."""
NUM_BARS: Final = 14_400
"""Bars of each: 300 days, so that training sees every day of the month and every month."""


def train(
    folder: Path,
    run: Path,
    *,
    seeds: range = SEEDS,
    num_bars: int = NUM_BARS,
    overrides: Sequence[str] = (),
    listeners: Sequence[Listener] = (),
) -> dict[str, Any]:
    """Train in the folder ``run``, or resume the run there, and write the checkpoint to ``folder``.

    ``overrides`` are those of ``load_config``. Returns the content of the checkpoint's ``metadata.json``.
    """
    data = run / "candles"  # one file an instrument
    data.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        pd.DataFrame(candles(seed, num_bars).as_dict()).to_parquet(data / f"synthetic-{seed}.parquet")
    config = load_config(CONFIG, [f"data.path={json.dumps(str(data))}", *overrides])
    result = finetune(config, run, listeners=listeners)
    shutil.copytree(result.checkpoint, folder, dirs_exist_ok=True)
    metadata = {**result.metadata, "command": COMMAND}
    # A local path means nothing on another machine.
    metadata["config"]["data"]["path"] = (
        f"kronos_model.bars.synthetic.candles, seeds {seeds[0]} to {seeds[-1]}"
    )
    RunFolder(folder).write("metadata.json", metadata)
    return metadata


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
    RunFolder(options.folder).write("metadata.json", {**metadata, "held_out": held_out.as_dict()})
    sys.stderr.write(held_out.summary() + "\n")


if __name__ == "__main__":
    main()
