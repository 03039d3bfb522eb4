"""From logits to tokens, each row with its own temperature, top_k, top_p and noise.

The draw is ``argmax(p / noise)`` with exponential noise, which on the CPU is what ``torch.multinomial``
does: a generator seeded with n gives the tokens that the reference gives under ``torch.manual_seed(n)``.
"""

from collections.abc import Sequence as Many
from dataclasses import dataclass

import torch
from torch import Tensor

from kronos_model.engine.sequence import SamplingParams, Sequence


class NoiseSource:
    """A sequence's own noise, drawn from its seed alone, so that no neighbour can change it.

    Each draw is for all paths of the generation, of which a round uses its own rows. A step that failed and
    is run again gets the same draws, until ``commit``.
    """

    def __init__(self, sequence: Sequence) -> None:
        sampling = sequence.request.sampling
        self._num_paths = sampling.sample_count
        self._rows = slice(sequence.first_path, sequence.first_path + sequence.num_paths)
        # Always the CPU's generator: the same numbers on every device.
        self._generator = torch.Generator().manual_seed(sampling.seed)
        self._drawn: dict[str, Tensor] = {}

    def draw(self, name: str, vocabulary: int) -> Tensor:
        """Exponential noise (num_paths, vocabulary) on the CPU for this step's draw called ``name``."""
        if name not in self._drawn:
            noise = torch.empty(self._num_paths, vocabulary).exponential_(generator=self._generator)
            self._drawn[name] = noise[self._rows]
        return self._drawn[name]

    def commit(self) -> None:
        """The step is done; the next draws are new ones."""
        self._drawn.clear()


@dataclass(frozen=True)
class RowParams:
    """Sampling parameters a row: each (R, 1) on the logits' device; ``filters`` says if any row filters."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    filters: bool

    @classmethod
    def of(cls, rows: Many[SamplingParams], device: torch.device) -> "RowParams":
        """From the parameters of each row, in order."""

        def column(values: list[float] | list[int]) -> Tensor:
            return torch.tensor(values, device=device).unsqueeze(-1)

        return cls(
            column([row.temperature for row in rows]),
            column([row.top_k for row in rows]),
            column([row.top_p for row in rows]),
            any(row.top_k > 0 or row.top_p < 1 for row in rows),
        )


def filter_logits(logits: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Logits (R, V) with −inf where a row's top_k or top_p (each (R, 1)) drops the token.

    top_k keeps the k best and ties with the k-th. Of what is left, top_p drops every token after the one
    whose cumulative probability first exceeds it. top_k 0 and top_p 1 drop nothing.
    """
    vocabulary = logits.shape[-1]
    ordered, order = logits.sort(dim=-1, descending=True)
    k = torch.where(top_k > 0, top_k.clamp(max=vocabulary), vocabulary)
    kth_best = ordered.gather(-1, k - 1)
    ordered = ordered.masked_fill(ordered < kth_best, -torch.inf)
    exceeded = (ordered.softmax(-1).cumsum(-1) > top_p) & (top_p < 1)
    after = torch.cat((torch.zeros_like(exceeded[:, :1]), exceeded[:, :-1]), dim=-1)
    return torch.empty_like(logits).scatter_(-1, order, ordered.masked_fill(after, -torch.inf))


def sample(logits: Tensor, params: RowParams, noise: Tensor) -> Tensor:
    """One token a row: logits and noise (R, V) → (R,) int64."""
    logits = logits.float() / params.temperature
    if params.filters:
        logits = filter_logits(logits, params.top_k, params.top_p)
    return (logits.softmax(-1) / noise).argmax(-1)
