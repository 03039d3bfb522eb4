"""What a decode step needs of each path, in columns by slot. No torch.

The columns are patched where a sequence joins or leaves, and advance with each bar. So a step with many paths
costs the host little more than one with few.
"""

from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kronos_model.engine.generation import MIN_TEMPERATURE
from kronos_model.engine.scheduling.reads import newest_bar
from kronos_model.engine.sequence import Sequence

CHANGING_COLUMNS: Final = (
    "newest",  # index of the newest of the path's own bars
    "position",  # in the window, of that bar; "rolling" exceeds the context
    "bar",  # of the slot, where its keys and values go
    "seen",  # bars of the slot that the path sees, from the first; all of them beyond the context
)
COLUMNS: Final = (
    *CHANGING_COLUMNS,
    "is_used",  # 1 if a path decodes in this slot
    "wraps_at",  # the bar after the slot's last one; after the cache has rolled, its first bar is next
    "lead",  # first slot of the sequence
    "prompt",  # index of the shared prompt; −1 for none
    "prompt_bars",  # of the shared prompt
    "top_k",
    "seed",
    "path",
)


@dataclass(frozen=True, eq=False)
class Batch:
    """Sequences that decode together: R rows, path after path.

    It is the same object as long as the same sequences decode in the same windows.
    """

    table: "PathTable"
    sequences: tuple[Sequence, ...]
    slots: NDArray[np.int64]  # (R,)


class PathTable:
    """The sequences that decode, and columns (num_slots,) of their paths.

    A slot that is not used writes its token and keys where nothing reads them, and sees its first bar.
    """

    def __init__(self, num_slots: int, max_context: int) -> None:
        self.num_slots, self.max_context = num_slots, max_context
        spare = {"newest": max_context + 1, "bar": max_context, "wraps_at": max_context + 1}
        unused = spare | {"seen": 1, "prompt": -1}
        self.unused = np.array([[unused.get(name, 0)] for name in COLUMNS], dtype=np.int64)
        self.values = np.repeat(self.unused, num_slots, axis=1)  # (columns, num_slots)
        self.columns = dict(zip(COLUMNS, self.values, strict=True))
        self.sampling = np.ones((2, num_slots), dtype=np.float32)  # temperature and top_p
        self._by_lead: list[Sequence | None] = [None] * num_slots
        self._sequences: tuple[Sequence, ...] | None = ()
        self._batch: Batch | None = None

    def __contains__(self, sequence: Sequence) -> bool:
        return bool(sequence.slots) and self._by_lead[sequence.slots[0]] is sequence

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        """By slot: neighbours in the cache are read in one go."""
        if self._sequences is None:
            self._sequences = tuple([one for one in self._by_lead if one is not None])
        return self._sequences

    def join(self, sequence: Sequence) -> None:
        """Let a sequence decode, from where it is now."""
        request, slots = sequence.request, list(sequence.slots)
        shares_prompt = sequence.shares_prompt
        values = {
            "newest": sequence.num_generated,
            "position": sequence.newest_position,
            "bar": newest_bar(sequence),
            "seen": sequence.own_start + sequence.num_generated + 1,
            "is_used": 1,
            "wraps_at": self.max_context,
            "lead": slots[0],
            "prompt": sequence.prompt_slot - self.num_slots if shares_prompt else -1,
            "prompt_bars": sequence.cached_prompt_length if shares_prompt else 0,
            "top_k": request.sampling.top_k,
            "seed": request.sampling.seed,
            "path": sequence.first_path,
        }
        self.values[:, slots] = np.array([[values[name]] for name in COLUMNS])
        self.columns["path"][slots] += np.arange(len(slots))
        temperature = max(request.sampling.temperature, MIN_TEMPERATURE)
        self.sampling[:, slots] = [[temperature], [request.sampling.top_p]]
        self._by_lead[slots[0]] = sequence
        self._sequences = self._batch = None

    def leave(self, sequence: Sequence) -> None:
        """Let a sequence decode no longer."""
        self._by_lead[sequence.slots[0]] = None
        self.clear(sequence.slots)

    def clear(self, slots: tuple[int, ...]) -> None:
        """Let the paths in these slots decode no longer."""
        self.values[:, list(slots)] = self.unused
        self._sequences = self._batch = None

    def advance(self, sequences: tuple[Sequence, ...]) -> None:
        """Go on by a bar."""
        slots = self.batch_of(sequences).slots
        self.values[: len(CHANGING_COLUMNS), slots] += 1
        self.columns["bar"][slots] %= self.max_context

    def batch_of(self, sequences: tuple[Sequence, ...]) -> Batch:
        """Some or all of the sequences, to be computed together."""
        if self._batch is None or self._batch.sequences != sequences:
            slots = np.fromiter(chain.from_iterable([one.slots for one in sequences]), dtype=np.int64)
            self._batch = Batch(self, sequences, slots)
        return self._batch
