"""AdamW and its schedule, from a config."""

import torch
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import ConstantLR, LRScheduler, OneCycleLR

from kronos_model.finetuning.config import OptimiserConfig


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
