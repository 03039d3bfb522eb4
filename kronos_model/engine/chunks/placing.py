"""What goes into slots that sequences have just got."""

from collections.abc import Mapping
from collections.abc import Sequence as Many
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from kronos_model.engine.chunks.generation_state import GenerationState
from kronos_model.engine.chunks.packed import places_of
from kronos_model.engine.chunks.transfer import joined
from kronos_model.engine.generation import Generation
from kronos_model.engine.sequence import Phase, Sequence


class PlacingPlan(NamedTuple):
    """M bars of calendars, and where the last tokens of lookbacks go, if these are tokenized."""

    places: Tensor  # (2, M), slots and bars
    calendar: Tensor  # (M, 2)
    slots: Tensor  # (n, 2), number of the tokenized lookback, and slot

    @classmethod
    def of(cls, sequences: Many[Sequence], states: Mapping[Generation, GenerationState]) -> Self:
        """In the host's memory."""
        calendars = [states[one.generation].calendar[one.prompt_length :] for one in sequences]
        tokenized = [one for one in sequences if one.phase is not Phase.LOOKBACK]
        slots = [(number, slot) for number, one in enumerate(tokenized) for slot in one.slots]
        return cls(
            places_of((one.slots[0], 0, len(own)) for one, own in zip(sequences, calendars, strict=True)),
            joined(calendars, 2),
            torch.from_numpy(np.array(slots, dtype=np.int64).reshape(-1, 2)),
        )
