"""The random numbers of a series. They depend on its seed alone, so no other series can change them.

On the CPU they are those of the reference. On a GPU, drawing series by series would cost a kernel launch
each, so each number is computed from its seed, path, step and column.
"""

from typing import Final

import torch
from torch import Tensor

from kronos_model.engine.sequence import Sequence

GAMMA: Final = 0x9E3779B97F4A7C15 - (1 << 64)
MULTIPLIERS: Final = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))
_SKIPPED: Final = torch.empty(4096, dtype=torch.int64)
UNIFORM_BITS: Final = 24  # what float32 holds


class NoiseSource:
    """Exponential noise for the paths of a sequence, from its own generator.

    As in the reference, a step draws s1 for all paths of the generation, then s2, from a CPU generator. Only
    the sequence's own rows are computed; the generator skips the others. A step that is run again gets the
    same draws.
    """

    def __init__(
        self, sequence: Sequence, s1_vocabulary: int, s2_vocabulary: int, state: Tensor | None = None
    ) -> None:
        sampling = sequence.request.sampling
        self._num_before = sequence.first_path
        self._num_after = sampling.sample_count - sequence.paths.stop
        self._rows = tuple(torch.empty(sequence.num_paths, size) for size in (s1_vocabulary, s2_vocabulary))
        self._generator = torch.Generator().manual_seed(sampling.seed)
        if state is not None:
            self._generator.set_state(state)
        self._num_steps_drawn = 0 if state is None else sequence.num_generated
        self._state = self._generator.get_state()  # before the newest step

    def state_before(self, step: int) -> Tensor:
        """The generator's state from which this step, the newest or the next, is drawn."""
        return self._state if step < self._num_steps_drawn else self._generator.get_state()

    def draw(self, step: int) -> tuple[Tensor, ...]:
        """A step's noise for s1 and s2, (num_paths, vocabulary) each, valid until the next; from step 0."""
        if step + 1 < self._num_steps_drawn:
            raise ValueError("steps are drawn in order")
        while self._num_steps_drawn <= step:
            self._state = self._generator.get_state()
            for rows in self._rows:
                self._skip(self._num_before * rows.shape[1])
                rows.exponential_(generator=self._generator)
                self._skip(self._num_after * rows.shape[1])
            self._num_steps_drawn += 1
        return self._rows

    def _skip(self, count: int) -> None:
        """Skip exponential numbers. An int64 takes as many random bits, and a sixth of the time."""
        while count > 0:
            count -= len(_SKIPPED[:count].random_(generator=self._generator))


def counter_noise(seed: Tensor, path: Tensor, step: Tensor, draw: int, vocabulary: int) -> Tensor:
    """Exponential noise (R, vocabulary) for rows with these seeds, paths and steps, each (R,) int64.

    ``draw`` is 0 for s1 and 1 for s2. SplitMix64 (Steele, Lea and Flood, 2014), by counter: a number depends
    on its place alone, not on the batch.
    """
    key = _mix(seed + GAMMA)
    for count in (path, 2 * step + draw):
        key = _mix(key + (count + 1) * GAMMA)
    columns = torch.arange(1, vocabulary + 1, device=seed.device)
    bits = _mix(key.unsqueeze(-1) + columns * GAMMA)
    uniform = (_shift(bits, 64 - UNIFORM_BITS) + 1).float() / 2**UNIFORM_BITS  # (0, 1]
    # Never zero, because the noise is a divisor.
    return -uniform.log() + 2.0 ** -(UNIFORM_BITS + 1)


def _mix(z: Tensor) -> Tensor:
    for bits, multiplier in zip((30, 27), MULTIPLIERS, strict=True):
        z = (z ^ _shift(z, bits)) * multiplier
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    """Shift right, as for an unsigned integer."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
