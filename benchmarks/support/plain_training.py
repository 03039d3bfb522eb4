"""Training in its simplest form: one window at a time from DataFrames, PyTorch's defaults, one loop.

It has the model, losses, optimiser and schedule of the reference's training, and the windows and draws of
ours, so that only the computation differs.
"""

import time
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from kronos_model.bars.columns import COLUMNS, TIME_FEATURES
from kronos_model.finetuning.stages.batches import seed_step, step_seed
from kronos_model.model import Kronos, token_loss
from kronos_model.tokenizer import KronosTokenizer


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
