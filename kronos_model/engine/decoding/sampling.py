"""From logits to tokens, each row with its own temperature, top_k, top_p and noise.

The draw is ``argmax(p / noise)`` with exponential noise, as ``torch.multinomial`` does it on the CPU. So a
generator seeded with n gives the tokens that the reference gives under ``torch.manual_seed(n)``.

The noise of a series depends on its seed alone, so no other series can change it. On the CPU it is that of
the reference. On a GPU, drawing series by series would cost a kernel launch each, so each number is computed
from its seed, path, step and column.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kronos_model.engine.generation import MIN_TEMPERATURE, SamplingParams
from kronos_model.engine.sequence import Sequence

GAMMA: Final = 0x9E3779B97F4A7C15 - (1 << 64)
MULTIPLIERS: Final = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))
_SKIPPED: Final = torch.empty(4096, dtype=torch.int64)
UNIFORM_BITS: Final = 24  # what float32 holds


@dataclass(frozen=True)
class RowParams:
    """Sampling parameters by row, each (R, 1) on the logits' device; None if no row filters by it."""

    temperature: Tensor
    top_k: Tensor | None
    top_p: Tensor | None

    @classmethod
    def from_rows(cls, rows: list[SamplingParams], device: torch.device) -> "RowParams":
        """From the parameters of each row, in order."""
        temperature = [max(row.temperature, MIN_TEMPERATURE) for row in rows]
        return cls.from_columns(
            np.array(temperature, np.float32),
            np.array([row.top_k for row in rows]),
            np.array([row.top_p for row in rows], np.float32),
            device,
        )

    @classmethod
    def from_columns(
        cls, temperature: NDArray[Any], top_k: NDArray[Any], top_p: NDArray[Any], device: torch.device
    ) -> "RowParams":
        """From arrays (R,)."""

        def column(values: NDArray[Any]) -> Tensor:
            return torch.from_numpy(values[:, None]).to(device)

        return cls(
            column(temperature),
            column(top_k) if (top_k > 0).any() else None,
            column(top_p) if (top_p < 1).any() else None,
        )


def filter_probabilities(p: Tensor, top_k: Tensor | None, top_p: Tensor | None) -> Tensor:
    """Probabilities (R, V), zero where a row's top_k or top_p (each (R, 1)) drops the token; not rescaled.

    top_k keeps the k best and ties with the k-th. Then top_p drops every token after the one whose
    cumulative share first exceeds it, but none that ties with that one. top_k 0 and top_p 1 drop
    nothing.
    """
    if top_k is None and top_p is None:
        return p
    vocabulary = p.shape[-1]
    threshold, ordered = p.new_zeros(()), sort_descending(p)
    if top_k is not None:
        kth = torch.where(top_k > 0, top_k, vocabulary).clamp(max=vocabulary) - 1
        threshold = ordered.gather(-1, kth)
        ordered = ordered * (ordered >= threshold)
    if top_p is not None:
        cumulative = ordered.cumsum(-1)
        cumulative = cumulative / cumulative[:, -1:]
        # The last kept token is the first one beyond top_p, or the last one that top_k left.
        last_kept = (cumulative <= top_p).sum(-1, keepdim=True).clamp(max=vocabulary - 1)
        threshold = torch.maximum(threshold, ordered.gather(-1, last_kept))
    return p * (p >= threshold)


def sort_descending(x: Tensor) -> Tensor:
    """Each row's values, largest first.

    NumPy does it on the CPU, because it sorts floats with vector instructions: 18 times as fast as
    ``torch.sort`` on 64 rows of 1024.
    """
    if x.device.type != "cpu":
        return x.sort(dim=-1, descending=True).values
    return torch.from_numpy(np.sort(x.numpy(), axis=-1)).flip(-1)


def sample(logits: Tensor, params: RowParams, noise: Tensor) -> Tensor:
    """One token a row: logits and noise (R, V) → (R,) int64."""
    p = (logits.float() / params.temperature).softmax(-1)
    return (filter_probabilities(p, params.top_k, params.top_p) / noise).argmax(-1)


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


Draw = Callable[[Tensor, RowParams, Tensor, Tensor, Tensor, int], Tensor]
"""Tokens (R,) from logits (R, V), parameters, and seed, path and step of each row, each (R,) int64; last is
0 for s1 and 1 for s2."""


def draw(logits: Tensor, params: RowParams, seed: Tensor, path: Tensor, step: Tensor, number: int) -> Tensor:
    """A draw on any device."""
    return sample(logits, params, counter_noise(seed, path, step, number, logits.shape[-1]))


def check_draw(kernel: Draw, device: torch.device, vocabulary: int = 1024) -> None:
    """Raise ``RuntimeError`` unless a kernel draws what ``draw`` draws, with all kinds of parameters."""
    rows = [
        SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)
        for temperature in (0.1, 1.0, 2.0)
        for top_k in (0, 1, 7, 2 * vocabulary)
        for top_p in (1.0, 0.9, 0.3)
    ]
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(len(rows), vocabulary, generator=generator)
    seed = torch.randint(2**63 - 1, (len(rows),), generator=generator)
    path = torch.arange(len(rows), device=device)
    for number in (0, 1):
        inputs = logits.to(device), RowParams.from_rows(rows, device), seed.to(device), path, 3 * path, number
        ours, theirs = draw(*inputs), kernel(*inputs)
        if not torch.equal(ours, theirs):
            raise RuntimeError("it draws other tokens")
