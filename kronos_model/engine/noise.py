"""The random numbers of a series, drawn from its seed alone, so that no neighbour can change them."""

import torch
from torch import Tensor

from kronos_model.engine.running import Sequence


class NoiseSource:
    """Exponential noise for the paths of a sequence, the same on every device.

    A step's draws are for all paths of the generation, of which a round uses its own rows: as the reference
    draws them, for s1 and then for s2, from a generator of the CPU. A step that failed and is run again gets
    the same draws.
    """

    def __init__(self, sequence: Sequence, s1_vocabulary: int, s2_vocabulary: int) -> None:
        sampling = sequence.request.sampling
        self._seed, self._num_paths = sampling.seed, sampling.sample_count
        self._rows = slice(sequence.first_path, sequence.first_path + sequence.num_paths)
        self._sizes = s1_vocabulary, s2_vocabulary
        self._generator = torch.Generator().manual_seed(self._seed)
        self._num_steps_drawn = 0
        # For both at once: one draw of both is what one draw after the other is.
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
