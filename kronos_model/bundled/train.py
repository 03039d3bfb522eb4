"""Train the bundled checkpoint anew: ``python -m kronos_model.bundled.train``.

It writes candles of synthetic instruments, trains on them as ``kronos-tiny.yaml`` says, with the code that
anybody finetunes with, forecasts instruments that it has not seen, and puts the result where it is bundled.
The numbers depend on the config, and in their last digits on PyTorch's version and the processor.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import pandas as pd

from kronos_model.bars.synthetic import candles
from kronos_model.bundled.held_out import NAME, compare_held_out
from kronos_model.checkpoints.source import BUNDLED_FOLDER
from kronos_model.finetuning.config_file import load_config
from kronos_model.finetuning.reporting import Listener, ProgressBar
from kronos_model.finetuning.run import finetune

CONFIG: Final = BUNDLED_FOLDER / f"{NAME}.yaml"
COMMAND: Final = "python -m kronos_model.bundled.train"

SEEDS: Final = range(1_000, 1_064)
"""Of the instruments that it is trained on."""
NUM_BARS: Final = 14_400
"""Of each: 300 days, so that every day of the month and every month are seen in training."""


def write_candles(folder: Path, seeds: Iterable[int], num_bars: int) -> None:
    """One Parquet file an instrument."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        pd.DataFrame(candles(seed, num_bars).as_dict()).to_parquet(folder / f"synthetic-{seed}.parquet")


def train(
    folder: Path,
    run: Path,
    *,
    seeds: range = SEEDS,
    num_bars: int = NUM_BARS,
    overrides: Sequence[str] = (),
    listeners: Sequence[Listener] = (),
) -> dict[str, Any]:
    """Train in the folder ``run``, taking up what was begun there, and write the checkpoint to ``folder``.

    ``overrides`` are as ``load_config`` takes them. Returns what the checkpoint's ``metadata.json`` says.
    """
    write_candles(run / "candles", seeds, num_bars)
    config = load_config(CONFIG, [f"data.path={json.dumps(str(run / 'candles'))}", *overrides])
    result = finetune(config, run, listeners=listeners)
    shutil.copytree(result.checkpoint, folder, dirs_exist_ok=True)
    metadata = {**result.metadata, "command": COMMAND}
    # The path that they had here says nothing anywhere else.
    metadata["config"]["data"]["path"] = (
        f"kronos_model.bars.synthetic.candles, seeds {seeds[0]} to {seeds[-1]}"
    )
    write_metadata(folder, metadata)
    return metadata


def write_metadata(folder: Path, metadata: dict[str, Any]) -> None:
    """What a checkpoint says of itself."""
    text = json.dumps(metadata, indent=2, ensure_ascii=False)
    (folder / "metadata.json").write_text(text + "\n", encoding="utf-8")


def main() -> None:
    """Command line of this module."""
    parser = argparse.ArgumentParser(description=f"Train the bundled checkpoint {NAME} anew.")
    parser.add_argument(
        "--folder", type=Path, default=BUNDLED_FOLDER / NAME, help="where to (default: %(default)s)"
    )
    parser.add_argument(
        "--run", type=Path, help="folder of the run, to be taken up again; a temporary one where not given"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        run = options.run or Path(temporary)
        metadata = train(options.folder, run, listeners=[ProgressBar(sys.stderr)])
    held_out = compare_held_out(options.folder)
    write_metadata(options.folder, {**metadata, "held_out": held_out.as_dict()})
    sys.stderr.write(held_out.summary() + "\n")


if __name__ == "__main__":
    main()
