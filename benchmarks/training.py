"""How fast is a training step, compared with a plain loop like that of the reference?

The predictor's stage of ``finetune`` on windows of 400 + 48 synthetic bars, in the shapes of Kronos-mini and
-small with random weights. Each run is a separate process on all cores; the kinds take turns. The plain loop
has one window at a time from DataFrames, PyTorch's defaults, and the reference's model, losses, optimiser and
schedule. Both loops start from the same weights and use the same windows and draws, so their float32 losses
must agree.

    python -m benchmarks.training [--shapes mini small] [--steps 8] [--runs 3] [--device cpu]
"""

import itertools
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks.support.harness import Table, apart, in_turn, medians, options
from benchmarks.support.workload import random_pair
from kronos_model.bars.columns import COLUMNS, TIME_FEATURES
from kronos_model.bars.synthetic import candles
from kronos_model.finetuning import finetune, parse_config
from kronos_model.finetuning.stages.batches import seed_step, step_seed, window_order
from kronos_model.model import Kronos, token_loss
from kronos_model.tokenizer import KronosTokenizer

WARM_UP_STEPS: Final = 2
LOOKBACK, PRED_LEN = 400, 48
BATCH_SIZE: Final = {"mini": 16, "small": 8, "base": 4}
NAMES: Final = {"no": "float32", "bf16": "bf16", "fp16": "fp16"}
"""Of the values of ``mixed_precision``."""
NUM_BARS: Final = 4000
CUT: Final = NUM_BARS - 2 * (LOOKBACK + PRED_LEN)
"""The bars to train on; validation is one window."""
SEED: Final = 0


class PlainWindows(Dataset[tuple[Tensor, Tensor]]):
    """One window per item, cut from a DataFrame and scaled on access."""

    def __init__(self, candles: pd.DataFrame, starts: Sequence[int], lookback: int, pred_len: int) -> None:
        times = pd.to_datetime(candles["timestamps"]).dt
        self._candles = candles.assign(**{name: getattr(times, name) for name in TIME_FEATURES})
        self._starts = starts
        self._lookback, self._window = lookback, lookback + pred_len

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = self._starts[index]
        rows = self._candles.iloc[start : start + self._window]
        bars = rows[list(COLUMNS)].to_numpy(dtype=np.float32)
        past = bars[: self._lookback]
        scaled = np.clip((bars - past.mean(axis=0)) / (past.std(axis=0) + 1e-5), -5, 5)
        return torch.from_numpy(scaled), torch.from_numpy(rows[list(TIME_FEATURES)].to_numpy(dtype=np.int64))


def train_plainly(
    model: Kronos, tokenizer: KronosTokenizer, windows: PlainWindows, batch_size: int, seed: int
) -> tuple[list[float], list[float]]:
    """One epoch in the windows' order: seconds and loss of each step."""
    loader: Any = DataLoader(windows, batch_size=batch_size)
    optimiser = torch.optim.AdamW(model.parameters(), lr=4e-5, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, max_lr=4e-5, total_steps=len(loader), pct_start=0.03, div_factor=10
    )
    device = next(model.parameters()).device
    model.train()
    seconds, losses = [], []
    started = time.perf_counter()
    for step, (x, stamp) in enumerate(loader):
        x, stamp = x.to(device), stamp.to(device)
        seed_step(step_seed(seed, "predictor", step, 0), device)
        with torch.no_grad():
            s1, s2 = cast(tuple[Tensor, Tensor], tokenizer.encode(x))
        logits = model(s1[:, :-1], s2[:, :-1], stamp[:, :-1])
        loss, _, _ = token_loss(*logits, s1[:, 1:], s2[:, 1:])
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 3.0)
        optimiser.step()
        schedule.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - started)
        started = time.perf_counter()
    return seconds, losses


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
            moments.append((event["step"], time.perf_counter()))
            losses.append(event["loss"])

    finetune(config, folder / "run", listeners=[record])
    seconds = []
    for (first, before), (last, after) in itertools.pairwise(moments):  # on a GPU not every step is reported
        seconds += (last - first) * [(after - before) / (last - first)]
    return moments[0][0] * seconds[:1] + seconds, losses


def main() -> None:
    given = options(__doc__, shapes=["mini", "small"], steps=8, runs=3, device="cpu")
    kinds = ["plain", "no", "bf16", *(["fp16"] if given.device == "cuda" else [])]
    for shape in given.shapes:
        cases = {kind: partial(apart, measure, kind, shape, given.steps, given.device) for kind in kinds}
        _print_table(shape, in_turn(cases, given.runs))


def _print_table(shape: str, runs: dict[str, list[tuple[float, float, float]]]) -> None:
    print(f"Kronos-{shape}, {BATCH_SIZE[shape]} windows of {LOOKBACK} + {PRED_LEN} bars per step")
    table = Table(":<20", "steps/s:>8.3f", "times:>6.2f", "spread:>14", "peak MiB:>9.0f", "loss:>9.5f")
    plain_s, _, _ = medians(runs["plain"])
    for kind, results in runs.items():
        seconds, _, losses = zip(*results, strict=True)
        step_s, peak, _ = medians(results)
        name = "plain loop, float32" if kind == "plain" else f"ours, {NAMES[kind]}"
        spread = f"{1 / max(seconds):.3f} – {1 / min(seconds):.3f}"
        table.row(name, 1 / step_s, plain_s / step_s, spread, peak, losses[0])
    print(flush=True)


if __name__ == "__main__":
    main()
