"""The two stages of training: the trained module, and the losses of a batch.

A batch is ``{"x": (B, L, 6) scaled bars, "stamp": (B, L, 5) time features}``; see ``windows.py``.
``losses`` is the training pass: ``loss``, which is minimised, and its parts, all scalars.
``validation_losses`` is in eval mode, per window over its last ``num_bars``: ``loss``, which selects the best
weights, and its parts, each (B,). The bars before them may be bars of training. The ``module`` of both is
``trained`` itself, or its wrapper for several processes.
"""

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW
from torch.optim.lr_scheduler import ConstantLR, LRScheduler, OneCycleLR

from kronos_model.finetuning.config import OptimiserConfig, StageName
from kronos_model.model import Kronos, token_loss
from kronos_model.tokenizer import KronosTokenizer

Batch = Mapping[str, Tensor]
Losses = dict[str, Tensor]


class TokenizerStage:
    """Both reconstructions and the quantiser's own loss. Validation is the full reconstruction's error."""

    name: StageName = "tokenizer"

    def __init__(self, tokenizer: KronosTokenizer) -> None:
        self.trained = tokenizer

    def losses(self, module: nn.Module, batch: Batch) -> Losses:
        x = batch["x"]
        (coarse, full), quantizer_loss, _, _ = module(x)
        coarse_loss, full_loss = F.mse_loss(coarse, x), F.mse_loss(full, x)
        loss = (coarse_loss + full_loss + quantizer_loss) / 2
        return {"loss": loss, "coarse": coarse_loss, "full": full_loss, "quantizer": quantizer_loss}

    def validation_losses(self, module: nn.Module, batch: Batch, num_bars: int) -> Losses:
        x = batch["x"]
        (coarse, full), _, _, _ = module(x)
        coarse_loss, full_loss = (
            (part - x)[:, -num_bars:].square().mean(dim=(1, 2)) for part in (coarse, full)
        )
        return {"loss": full_loss, "coarse": coarse_loss}


class PredictorStage:
    """Cross-entropy of the next bar's two tokens; no position sees its own. The tokenizer is not trained.

    With ``num_targets`` only that many last bars of a window count, each computed as in a forecast.
    """

    name: StageName = "predictor"

    def __init__(
        self, model: Kronos, tokenizer: KronosTokenizer, sibling: str, num_targets: int | None = None
    ) -> None:
        self.trained = model
        self._tokenizer = tokenizer
        self._teacher_forcing = sibling == "teacher_forced"
        self._num_targets = num_targets

    def losses(self, module: nn.Module, batch: Batch) -> Losses:
        logits, targets = self.predict(module, batch)
        loss, s1_loss, s2_loss = token_loss(*logits, *targets)
        return {"loss": loss, "s1": s1_loss, "s2": s2_loss}

    def validation_losses(self, module: nn.Module, batch: Batch, num_bars: int) -> Losses:
        logits, targets = self.predict(module, batch)
        s1_loss, s2_loss = (
            F.cross_entropy(token.transpose(1, 2), target, reduction="none")[:, -num_bars:].mean(dim=1)
            for token, target in zip(logits, targets, strict=True)
        )
        return {"loss": (s1_loss + s2_loss) / 2, "s1": s1_loss, "s2": s2_loss}

    def predict(self, module: nn.Module, batch: Batch) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Logits of both tokens, each (B, N, vocabulary), and their targets, each (B, N)."""
        # In float32 for any precision of training: forecasts encode in float32 too.
        with torch.no_grad(), torch.autocast(batch["x"].device.type, enabled=False):
            s1, s2 = cast(tuple[Tensor, Tensor], self._tokenizer.encode(batch["x"]))
        targets = s1[:, 1:].contiguous(), s2[:, 1:].contiguous()
        given = s1[:, :-1], s2[:, :-1], batch["stamp"][:, :-1]
        logits: Any = module(
            *given,
            use_teacher_forcing=self._teacher_forcing,
            s1_targets=targets[0],
            num_targets=self._num_targets,
        )
        num_targets = logits[0].shape[1]
        return logits, (targets[0][:, -num_targets:], targets[1][:, -num_targets:])


Stage = TokenizerStage | PredictorStage


def make_optimiser(module: nn.Module, config: OptimiserConfig) -> AdamW:
    """AdamW over every trained parameter, with weight decay on all of them, as in the reference."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return AdamW(
        parameters,
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.epsilon,
        weight_decay=config.weight_decay,
        fused=parameters[0].device.type in ("cpu", "cuda"),  # one kernel for all, several times faster
    )


def make_schedule(optimiser: torch.optim.Optimizer, config: OptimiserConfig, num_steps: int) -> LRScheduler:
    """The learning rate over ``num_steps`` optimiser steps; step it after each of them."""
    if config.schedule == "constant":
        return ConstantLR(optimiser, factor=1.0)
    total_steps = max(num_steps, 2)
    if config.pct_start * total_steps == 1:  # else OneCycleLR divides by 0, the length of the first phase
        total_steps += 1
    names = {"pct_start", "div_factor", "final_div_factor", "cycle_momentum", "base_momentum", "max_momentum"}
    return OneCycleLR(optimiser, config.learning_rate, total_steps, **config.model_dump(include=names))
