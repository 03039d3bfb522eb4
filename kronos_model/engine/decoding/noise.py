"""The random numbers of a series. They depend on its seed alone, so no other series can change them.

On the CPU they are those of the reference. On a GPU, drawing series by series would cost a kernel launch
each, so each number is computed from its seed, path, step and column.
"""

from collections.abc import Sequence as Many
from typing import Final, NamedTuple
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
        self._drawn: WeakKeyDictionary[Sequence, _Drawn] = WeakKeyDictionary()
        self._begin()

    def _begin(self) -> None:
        self._newest = torch.Generator().manual_seed(self._sampling.seed)
        self._num_steps = 0  # that a sequence has come to
        self._num_forgotten = 0  # steps that all sequences have behind them
        self._states: dict[int, list[_States]] = {}  # by step; of s1, then of s2

    def draw(self, sequence: Sequence) -> tuple[Tensor, ...]:
        """A sequence's noise for its next step, s1 and s2, (num_paths, vocabulary) each.

        It is valid until the next step, and the same if the step is run again.
        """
        step, count = sequence.num_generated, sequence.num_paths
        before = self._drawn.get(sequence)
        if before is None or len(before.rows[0]) < count:
            rows = tuple(torch.empty(count, vocabulary) for vocabulary in self._vocabularies)
        else:  # paths that were cut off were the last
            rows = tuple(one[:count] for one in before.rows)
        if before is None or before.step != step:
            if step < self._num_forgotten:  # the sequence has started over
                self._begin()
            while self._num_steps < step:
                self._draw_first(0, [torch.empty(0, vocabulary) for vocabulary in self._vocabularies])
            if step == self._num_steps:
                self._draw_first(sequence.first_path, rows)
            else:
                for states, one in zip(self._states[step], rows, strict=True):
                    self._draw_later(states, sequence.first_path, one)
            self._drawn[sequence] = _Drawn(step, rows)
            self._forget(sequence.generation.sequences, step)
        return rows

    def _draw_first(self, first_path: int, rows: Many[Tensor]) -> None:
        """Draw rows of a step to which no sequence has come before."""
        num_paths, last_path = self._sampling.sample_count, first_path + len(rows[0])
        self._states[self._num_steps] = by_draw = []
        for one in rows:
            vocabulary = one.shape[1]
            states = {0: self._newest.get_state()}
            _skip(self._newest, first_path * vocabulary)
            one.exponential_(generator=self._newest)
            if last_path < num_paths:
                states[last_path] = self._newest.get_state()
                _skip(self._newest, (num_paths - last_path) * vocabulary)
            by_draw.append(states)
        self._num_steps += 1

    def _draw_later(self, states: "_States", first_path: int, rows: Tensor) -> None:
        nearest = max(path for path in states if path <= first_path)
        self._later.set_state(states[nearest])
        _skip(self._later, (first_path - nearest) * rows.shape[1])
        rows.exponential_(generator=self._later)
        states[first_path + len(rows)] = self._later.get_state()

    def _forget(self, sequences: Many[Sequence], step: int) -> None:
        """Keep no states that nobody will need, unless sequences start over."""
        next_path = max(one.first_path + one.num_paths for one in sequences)
        have_all_begun = next_path == self._sampling.sample_count
        if len(self._states[step][0]) > 2:
            needed = {0, next_path, *(one.first_path for one in sequences if one.num_generated <= step)}
            self._states[step] = [
                {path: state for path, state in states.items() if path in needed}
                for states in self._states[step]
            ]
        oldest = min(one.num_generated for one in sequences) if have_all_begun else 0
        for behind in range(self._num_forgotten, oldest):
            del self._states[behind]
        self._num_forgotten = max(self._num_forgotten, oldest)


_States = dict[int, Tensor]
"""States of the generator, by the path whose row is next."""


class _Drawn(NamedTuple):
    step: int
    rows: tuple[Tensor, ...]


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
