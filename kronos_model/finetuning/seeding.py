"""Seeds of a run: the order of the windows, and the draws of each step.

Every step seeds torch's generators anew, by run, stage, step and process. So a run that is taken up again
draws what it would have drawn, with no generator's state to be kept, and each process draws its own.
"""

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from kronos_model.seeds import seed_from_text

VALIDATION: Final = "validation"


def seed_step(seed: int, stage: str, step: int | str, process: int, device: torch.device) -> None:
    """Seed the generators that dropout and sampling draw from. Touches no other device."""
    value = seed_from_text(f"{seed}:{stage}:{step}:{process}")
    torch.default_generator.manual_seed(value)
    if device.type == "cuda":
        torch.cuda.manual_seed(value)
    elif device.type == "mps":
        torch.mps.manual_seed(value)


def window_order(seed: int, stage: str, epoch: int, num_windows: int, num_drawn: int) -> NDArray[np.int64]:
    """Indices of an epoch's windows, (num_drawn,) of num_windows, drawn without repetition.

    Where fewer were drawn than a step takes, they are gone through again.
    """
    rng = np.random.default_rng(seed_from_text(f"{seed}:{stage}:epoch:{epoch}"))
    return np.resize(rng.permutation(num_windows), num_drawn)
