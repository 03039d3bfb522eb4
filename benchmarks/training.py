"""How fast is a training step, compared with a plain loop like that of the reference?

The predictor's stage of ``finetune`` on windows of 400 + 48 synthetic bars, in the shapes of Kronos-mini and
-small with random weights. Each run is a separate process on all cores; the kinds take turns. Both loops
start from the same weights and use the same windows and draws, so their float32 losses must agree.

    python -m benchmarks.training [--shapes mini small] [--steps 8] [--runs 3] [--device cpu]
"""

import itertools
import os
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import pandas as pd
import torch

from benchmarks.support.options import options
from benchmarks.support.own_process import own_process
from benchmarks.support.plain_training import PlainWindows, train_plainly
from benchmarks.support.shapes import random_pair
from kronos_model.bars.synthetic import candles
from kronos_model.finetuning import finetune, parse_config
from kronos_model.finetuning.stages.batches import window_order

WARM_UP_STEPS: Final = 2
LOOKBACK, PRED_LEN = 400, 48
BATCH_SIZE: Final = {"mini": 16, "small": 8, "base": 4}
NAMES: Final = {"no": "float32", "bf16": "bf16", "fp16": "fp16"}
"""Of the values of ``mixed_precision``."""
NUM_BARS: Final = 4000
CUT: Final = NUM_BARS - 2 * (LOOKBACK + PRED_LEN)
"""The bars to train on; validation is one window."""
SEED: Final = 0


def measure(kind: str, shape: str, steps: int, device: str) -> tuple[float, float, float]:
    """One run in this process: seconds per step, peak memory in MiB, last loss."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    steps += WARM_UP_STEPS
    table = pd.DataFrame(candles(seed=1, bars=NUM_BARS).as_dict())
    if kind == "plain":
        seconds, losses = _plain(table, shape, steps, device)
    else:
        with tempfile.TemporaryDirectory() as folder:
            seconds, losses = _ours(table, kind, shape, steps, device, Path(folder))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if device != "cpu":
        peak = torch.cuda.max_memory_allocated() / 2**20
    return statistics.median(seconds[WARM_UP_STEPS:]), peak, losses[-1]


def _plain(table: pd.DataFrame, shape: str, steps: int, device: str) -> tuple[list[float], list[float]]:
    model, tokenizer = (module.to(device) for module in random_pair(shape))
    num_train = CUT - LOOKBACK - PRED_LEN + 1
    order = window_order(SEED, "predictor", 0, num_train, steps * BATCH_SIZE[shape])
    windows = PlainWindows(table, order.tolist(), LOOKBACK, PRED_LEN)
    return train_plainly(model, tokenizer, windows, BATCH_SIZE[shape], SEED)


def _ours(
    table: pd.DataFrame, kind: str, shape: str, steps: int, device: str, folder: Path
) -> tuple[list[float], list[float]]:
    for module, part in zip(random_pair(shape), ("model", "tokenizer"), strict=True):
        module.save_pretrained(folder / "start" / part)
    table.to_parquet(folder / "candles.parquet")
    data = {
        "path": str(folder / "candles.parquet"),
        "lookback": LOOKBACK,
        "pred_len": PRED_LEN,
        "validation_from": str(table["timestamps"][CUT]),
        "test_from": str(table["timestamps"][NUM_BARS - LOOKBACK]),
        "gap": 0,
    }
    batch_size = BATCH_SIZE[shape]
    stage = {"batch_size": batch_size, "windows_per_epoch": steps * batch_size, "validation_windows": 1}
    config = parse_config(
        {
            "data": data,
            "start": {"model": str(folder / "start")},
            "stages": ["predictor"],
            "predictor": {"epochs": 1, **stage},
            "evaluation": {"windows": 0},
            "training_device": device,
            "mixed_precision": kind,
            "seed": SEED,
        }
    )
    moments, losses = [], []

    def record(event: Any) -> None:
        if event["event"] == "step":
            moments.append(time.perf_counter())
            losses.append(event["loss"])

    finetune(config, folder / "run", listeners=[record])
    seconds = [after - before for before, after in itertools.pairwise(moments)]
    return [seconds[0], *seconds], losses


def main() -> None:
    given = options(__doc__, shapes=["mini", "small"], steps=8, runs=3, device="cpu")
    kinds = ["plain", "no", "bf16", *(["fp16"] if given.device == "cuda" else [])]
    for shape in given.shapes:
        runs: dict[str, list[tuple[float, float, float]]] = {kind: [] for kind in kinds}
        for _ in range(given.runs):
            for kind in kinds:
                with own_process() as process:
                    runs[kind].append(
                        process.submit(measure, kind, shape, given.steps, given.device).result()
                    )
        _print_table(shape, runs)


def _print_table(shape: str, runs: dict[str, list[tuple[float, float, float]]]) -> None:
    print(f"Kronos-{shape}, {BATCH_SIZE[shape]} windows of {LOOKBACK} + {PRED_LEN} bars per step")
    print(f"{'':<20} {'steps/s':>8} {'times':>6} {'spread':>14} {'peak MiB':>9} {'loss':>9}")
    plain_s = statistics.median(step_s for step_s, _, _ in runs["plain"])
    for kind, results in runs.items():
        seconds, peaks, losses = zip(*results, strict=True)
        step_s = statistics.median(seconds)
        name = "plain loop, float32" if kind == "plain" else f"ours, {NAMES[kind]}"
        print(
            f"{name:<20} {1 / step_s:>8.3f} {plain_s / step_s:>6.2f} "
            f"{1 / max(seconds):>6.3f} – {1 / min(seconds):<5.3f} "
            f"{statistics.median(peaks):>9.0f} {losses[0]:>9.5f}"
        )
    print(flush=True)


if __name__ == "__main__":
    main()
