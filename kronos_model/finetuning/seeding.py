"""Seeds of a run, for the order of the windows and the draws of each step.

Every step seeds torch's generators by run, stage, step and process. So a resumed run makes the same draws
without a saved generator state, and each process makes its own.
"""

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from kronos_model.seeds import seed_from_text

VALIDATION: Final = "validation"


def seed_step(seed: int, stage: str, step: int | str, process: int, device: torch.device) -> None:
    """Seed the generators of dropout and sampling. No other device is touched."""
    value = seed_from_text(f"{seed}:{stage}:{step}:{process}")
    torch.default_generator.manual_seed(value)
    if device.type == "cuda":
        torch.cuda.manual_seed(value)
    elif device.type == "mps":
        torch.mps.manual_seed(value)


def window_order(seed: int, stage: str, epoch: int, num_windows: int, num_drawn: int) -> NDArray[np.int64]:
    """Indices of an epoch's windows, (num_drawn,), drawn from ``num_windows`` without repetition.

    If ``num_drawn`` is larger, the order starts again from its beginning.
    """
    rng = np.random.default_rng(seed_from_text(f"{seed}:{stage}:epoch:{epoch}"))
    return np.resize(rng.permutation(num_windows), num_drawn)
