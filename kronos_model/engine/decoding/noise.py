"""The noise by which tokens are drawn: on the CPU that of the reference, on a GPU a function of its place.

The noise of a series depends on its seed alone, so no other series can change it. On a GPU, drawing series by
series would cost a kernel launch each, so each number is computed from its seed, path, step and column.
"""

from typing import Final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from kronos_model.engine.generation import SamplingParams
from kronos_model.engine.sequence import Sequence

GAMMA: Final = 0x9E3779B97F4A7C15 - (1 << 64)
MULTIPLIERS: Final = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))
_SKIPPED: Final = torch.empty(4096, dtype=torch.int64)
UNIFORM_BITS: Final = 24  # what float32 holds


class NoiseSource:
    """Exponential noise for the sequences of a generation, from one generator.

    As in the reference, a step draws s1 for all paths, then s2, from a CPU generator. Only the rows of
    sequences are computed; the generator skips the others. Its states are kept where the rows of a sequence
    begin that comes to the step later.
    """

    def __init__(self, sampling: SamplingParams, vocabularies: tuple[int, int]) -> None:
        self._sampling, self._vocabularies = sampling, vocabularies
        self._later = torch.Generator()
        # Each sequence's newest step, and its rows of s1 and s2.
        self._drawn: WeakKeyDictionary[Sequence, tuple[int, tuple[Tensor, ...]]] = WeakKeyDictionary()
        self._begin()

    def _begin(self) -> None:
        self._newest = torch.Generator().manual_seed(self._sampling.seed)
        self._num_steps = 0  # that a sequence has come to
        self._num_forgotten = 0  # steps that all sequences have behind them
        # Of the generator, by step, for s1 and s2, and by the path whose row is next.
        self._states: dict[int, list[dict[int, Tensor]]] = {}

    def draw(self, sequence: Sequence) -> tuple[Tensor, ...]:
        """A sequence's noise for its next step, s1 and s2, (num_paths, vocabulary) each.

        It is valid until the next step, and the same if the step is run again.
        """
        step, count = sequence.num_generated, sequence.num_paths
        drawn_step, rows = self._drawn.get(sequence, (-1, ()))
        if not rows:
            rows = torch.empty(count, self._vocabularies[0]), torch.empty(count, self._vocabularies[1])
        elif len(rows[0]) > count:  # paths that were cut off were the last
            rows = rows[0][:count], rows[1][:count]
        if drawn_step != step:
            if step < self._num_forgotten:  # the sequence has started over
                self._begin()
            while self._num_steps < step:
                self._draw_first(0, (rows[0][:0], rows[1][:0]))
            if step == self._num_steps:
                self._draw_first(sequence.first_path, rows)
            else:
                for states, of_draw in zip(self._states[step], rows, strict=True):
                    self._draw_later(states, sequence.first_path, of_draw)
            self._forget(sequence.generation.sequences, step)
        self._drawn[sequence] = step, rows
        return rows

    def _draw_first(self, first_path: int, rows: tuple[Tensor, ...]) -> None:
        """Draw rows of a step to which no sequence has come before."""
        num_paths, last_path = self._sampling.sample_count, first_path + len(rows[0])
        self._states[self._num_steps] = by_draw = []
        for of_draw in rows:
            vocabulary = of_draw.shape[1]
            states = {0: self._newest.get_state()}
            _skip(self._newest, first_path * vocabulary)
            of_draw.exponential_(generator=self._newest)
            if last_path < num_paths:
                states[last_path] = self._newest.get_state()
                _skip(self._newest, (num_paths - last_path) * vocabulary)
            by_draw.append(states)
        self._num_steps += 1

    def _draw_later(self, states: dict[int, Tensor], first_path: int, rows: Tensor) -> None:
        nearest = max(path for path in states if path <= first_path)
        self._later.set_state(states[nearest])
        _skip(self._later, (first_path - nearest) * rows.shape[1])
        rows.exponential_(generator=self._later)
        states[first_path + len(rows)] = self._later.get_state()

    def _forget(self, sequences: list[Sequence], step: int) -> None:
        """Drop the states that no sequence needs unless it starts over."""
        next_path, oldest, needed = 0, step, {0}
        for sequence in sequences:
            next_path = max(next_path, sequence.first_path + sequence.num_paths)
            oldest = min(oldest, sequence.num_generated)
            if sequence.num_generated <= step:
                needed.add(sequence.first_path)
        if len(self._states[step][0]) > 2:
            self._states[step] = [
                {path: state for path, state in states.items() if path in needed or path == next_path}
                for states in self._states[step]
            ]
        if next_path == self._sampling.sample_count:  # all have begun
            for behind in range(self._num_forgotten, oldest):
                del self._states[behind]
            self._num_forgotten = max(self._num_forgotten, oldest)


def _skip(generator: torch.Generator, count: int) -> None:
    """Skip exponential numbers. An int64 takes as many random bits, and a sixth of the time."""
    while count > 0:
        count -= len(_SKIPPED[:count].random_(generator=generator))


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
