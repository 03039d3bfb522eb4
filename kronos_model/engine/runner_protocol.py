"""``Runner``, the computing side of an engine. No torch."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kronos_model.engine.generation import Generation
from kronos_model.engine.scheduling.allocation import Suspension
from kronos_model.engine.scheduling.path_table import Batch
from kronos_model.engine.sequence import Chunk, Sequence


class Runner(Protocol):
    """The computing side of an engine: ``ModelRunner`` in production, a scripted one in tests."""

    max_context: int
    num_slots: int

    def prepare(self) -> bool: ...

    def compute(self, chunks: tuple[Chunk, ...]) -> None: ...

    def decode(self, batch: Batch) -> None: ...

    def suspend(self, suspension: Suspension) -> None: ...

    def leave_slots(self, sequence: Sequence) -> None: ...

    def paths(self, sequence: Sequence) -> NDArray[np.float32]: ...

    def release(self, sequence: Sequence) -> None: ...

    def forget(self, generation: Generation) -> None: ...

    def is_lost(self) -> bool: ...
