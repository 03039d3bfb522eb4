"""The last step of the training: a factor on the coarse token's logits, so that forecasts are not too wide.

A model that was trained for minutes is not sure enough, most of all after long lookbacks, where the changes
are small against the scale. The factor is the one whose forecasts of the next close have the least CRPS
(Gneiting and Raftery, Strictly proper scoring rules, 2007) on instruments that neither training nor test has.
"""

from typing import Final

import numpy as np
import torch
from torch import Tensor

from kronos_model.bars.columns import CLOSE, Scaling, time_features
from kronos_model.bundled.held_out import held_out_windows
from kronos_model.finetuning.stages.stage import PredictorStage
from kronos_model.model import Kronos
from kronos_model.tokenizer import KronosTokenizer

FACTORS: Final = (0.95, 1.0, 1.05, 1.1, 1.15, 1.2)
LOOKBACKS: Final = (48, 64, 128, 256, 416)
NUM_TARGETS: Final = 48
SEED: Final = 11
"""The seed of the instruments; see ``held_out_windows``."""


def sharpen(model: Kronos, tokenizer: KronosTokenizer, clip: float, num_windows: int) -> float:
    """Multiply the coarse token's head by the best factor, in place, and return it."""
    losses = torch.stack([_losses(model.eval(), tokenizer, clip, num_windows, one) for one in LOOKBACKS])
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
    windows = held_out_windows(SEED, num_windows, lookback, NUM_TARGETS)
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
