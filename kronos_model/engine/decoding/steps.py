"""Decode steps: from the newest token of every path to the next one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from kronos_model.engine.decoding.noise import NoiseSource
from kronos_model.engine.decoding.sampling import RowParams, sample
from kronos_model.engine.generation import Generation, SamplingParams
from kronos_model.engine.scheduling.path_table import Batch
from kronos_model.engine.sequence import Sequence
from kronos_model.engine.transformer.network import Network


class SlotTokens:
    """The tokens of each slot's own bars, and the rows of their times in the embedding's table.

    A path's own bars are the lookback's last bar and the generated ones. All paths of a sequence have the
    same calendar, kept in the first slot. Both (num_slots, max_context + spare, 2), int64.
    """

    NUM_SPARE: Final = 3
    """One for the bar after the last own one, two that rows without a path read and write."""

    def __init__(self, num_slots: int, max_context: int, device: torch.device) -> None:
        self.num_slots, self.max_context = num_slots, max_context
        shape = (num_slots, max_context + self.NUM_SPARE, 2)
        self.tokens = torch.zeros(shape, dtype=torch.int64, device=device)
        self.calendar = torch.zeros_like(self.tokens)


class Steps(Protocol):
    """Advances sequences by a bar: ``EagerSteps`` on any device, ``StaticSteps`` on CUDA.

    An implementation is made with the ``Network``, whose weights and cache it uses, and the ``SlotTokens``. A
    step reads the columns of ``batch.table`` at ``batch.slots``; the runner has placed the paths in these
    slots, and the scheduler advances the table after the step.
    """

    def warm_up(self) -> None:
        """Prepare what the first steps would otherwise wait for."""

    def prepare(self) -> bool:
        """Do one piece of work that makes later steps faster, while nothing runs. False if there is none."""
        return False

    def decode(self, batch: Batch) -> None:
        """Put the newest bars into the cache, and append the next token to every path.

        A repeated call has the same outcome.
        """

    def release(self, sequence: Sequence) -> None:
        """Drop what is held for a sequence that ended or was suspended."""


class EagerSteps(Steps):
    """Steps over exactly the rows of the running paths; reads only the parts of the cache that they need."""

    def __init__(
        self,
        network: Network,
        own: SlotTokens,
        new_noise: Callable[[SamplingParams, tuple[int, int]], NoiseSource] = NoiseSource,
    ) -> None:
        self._network, self._own = network, own
        self._new_noise = new_noise
        self._noise: WeakKeyDictionary[Generation, NoiseSource] = WeakKeyDictionary()
        self._rows: _Rows | None = None

    @torch.inference_mode()
    def decode(self, batch: Batch) -> None:
        device = self._network.device
        if self._rows is None or self._rows.batch is not batch:
            self._rows = _Rows.from_batch(batch, device)
        rows = self._rows
        newest = torch.from_numpy(batch.table.columns["newest"][batch.slots]).to(device)
        noise: tuple[list[Tensor], list[Tensor]] = [], []  # of s1, of s2
        for sequence in batch.sequences:
            source = self._noise.get(sequence.generation)
            if source is None:
                vocabularies = self._network.s1_vocabulary, self._network.s2_vocabulary
                source = self._new_noise(sequence.request.sampling, vocabularies)
                self._noise[sequence.generation] = source
            for parts, drawn in zip(noise, source.draw(sequence), strict=True):
                parts.append(drawn)

        def choose(draw: int, logits: Tensor) -> Tensor:
            parts = noise[draw]
            joined = parts[0] if len(parts) == 1 else torch.cat(parts)
            return self.choose(logits, rows.params, joined.to(device))

        tokens, calendar = self._own.tokens[rows.slots, newest], self._own.calendar[rows.leads, newest]
        following = self._network.decode(batch, tokens, calendar, choose)
        self._own.tokens[rows.slots, newest + 1] = following

    def choose(self, logits: Tensor, params: RowParams, noise: Tensor) -> Tensor:
        """Tokens (R,) from logits and noise (R, vocabulary): of s1, then of s2."""
        return sample(logits, params, noise)

    def release(self, sequence: Sequence) -> None:
        self._rows = None


@dataclass(frozen=True)
class _Rows:
    """What stays the same while the same sequences run: R rows."""

    batch: Batch
    slots: Tensor  # (R,)
    leads: Tensor  # (R,), the first slot of each row's sequence
    params: RowParams

    @classmethod
    def from_batch(cls, batch: Batch, device: torch.device) -> Self:
        columns, slots = batch.table.columns, batch.slots
        top_k, (temperature, top_p) = columns["top_k"][slots], batch.table.sampling[:, slots]
        return cls(
            batch,
            torch.from_numpy(slots).to(device),
            torch.from_numpy(columns["lead"][slots]).to(device),
            RowParams.from_columns(temperature, top_k, top_p, device),
        )
