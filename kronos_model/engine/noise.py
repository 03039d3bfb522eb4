"""The random numbers of a series. They depend on its seed alone, so no other series can change them.

On the CPU they are those of the reference. On a GPU, drawing series by series would cost a kernel launch
each, so each number is computed from its seed, path, step and column.
"""

from typing import Final

import torch
from torch import Tensor

from kronos_model.engine.sequence import Sequence

_GAMMA: Final = 0x9E3779B97F4A7C15 - (1 << 64)
_MULTIPLIERS: Final = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))
_UNIFORM_BITS: Final = 24  # what float32 holds


class NoiseSource:
    """Exponential noise for the paths of a sequence, from its own generator.

    A step draws for all paths of the generation, and a round uses its own rows of that. As in the reference,
    s1 is drawn first, then s2, from a CPU generator. A step that is run again gets the same draws.
    """

    def __init__(self, sequence: Sequence, s1_vocabulary: int, s2_vocabulary: int) -> None:
        sampling = sequence.request.sampling
        self._seed, self._num_paths = sampling.seed, sampling.sample_count
        self._rows = slice(sequence.first_path, sequence.first_path + sequence.num_paths)
        self._sizes = s1_vocabulary, s2_vocabulary
        self._generator = torch.Generator().manual_seed(self._seed)
        self._num_steps_drawn = 0
        # One draw of both gives the same numbers as two draws.
        self._drawn = torch.empty(self._num_paths * (s1_vocabulary + s2_vocabulary))

    def draw(self, step: int) -> tuple[Tensor, Tensor]:
        """A step's noise for s1 and s2, (num_paths, vocabulary) each, valid until the next; from step 0."""
        if step + 1 < self._num_steps_drawn:
            raise ValueError("steps are drawn in order")
        while self._num_steps_drawn <= step:
            self._drawn.exponential_(generator=self._generator)
            self._num_steps_drawn += 1
        s1, s2 = torch.split(self._drawn, [self._num_paths * size for size in self._sizes])
        return s1.view(self._num_paths, -1)[self._rows], s2.view(self._num_paths, -1)[self._rows]


def counter_noise(seed: Tensor, path: Tensor, step: Tensor, draw: int, vocabulary: int) -> Tensor:
    """Exponential noise (R, vocabulary) for rows with these seeds, paths and steps, each (R,) int64.

    ``draw`` is 0 for s1 and 1 for s2. SplitMix64 (Steele, Lea and Flood, 2014), by counter: a number depends
    on its place alone, not on the batch.
    """
    key = _mix(seed + _GAMMA)
    for count in (path, 2 * step + draw):
        key = _mix(key + (count + 1) * _GAMMA)
    columns = torch.arange(1, vocabulary + 1, device=seed.device)
    bits = _mix(key.unsqueeze(-1) + columns * _GAMMA)
    uniform = (_shift(bits, 64 - _UNIFORM_BITS) + 1).float() / 2**_UNIFORM_BITS  # (0, 1]
    # Never zero, because the noise is a divisor.
    return -uniform.log() + 2.0 ** -(_UNIFORM_BITS + 1)


def _mix(z: Tensor) -> Tensor:
    for bits, multiplier in zip((30, 27), _MULTIPLIERS, strict=True):
        z = (z ^ _shift(z, bits)) * multiplier
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    """Shift right, as for an unsigned integer."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
