"""``ModelRunner``: holds the tensors of running sequences and computes their chunks and steps.

The tokens of a batch form one axis, (N, …), segment after segment, so that every linear layer runs once for
all of them. Only attention goes segment by segment.
"""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kronos_model.bars.columns import Scaling
from kronos_model.engine.allocation import Suspension
from kronos_model.engine.generation import Generation
from kronos_model.engine.kv_cache import KVCache, PathsSegment, PromptSegment, Segment
from kronos_model.engine.network import Network
from kronos_model.engine.path_table import Batch
from kronos_model.engine.sequence import Chunk, Phase, Sequence
from kronos_model.engine.slots import num_prompt_slots
from kronos_model.engine.static_steps import StaticSteps
from kronos_model.engine.steps import EagerSteps, SlotTokens, Steps
from kronos_model.engine.tokens import TokenCoder
from kronos_model.model import Kronos
from kronos_model.tokenizer import KronosTokenizer


@dataclass(eq=False)
class GenerationState:
    """What a generation holds apart from slots. T = lookback, P = prompt length, H = horizon."""

    scaling: Scaling
    scaled: Tensor  # (T, 6)
    encoded: KVCache | None  # of the tokenizer's encoder, while the lookback is tokenized
    lookback: Tensor  # (T, 2), tokens
    calendar: Tensor  # (P + 1 + H, 2), rows of the embedding's table
    prompt_bars: tuple[int, KVCache] | None = None  # bars of the prompt in the tokenizer's decoder
    suspended: dict[int, "SuspendedPath"] = field(default_factory=dict)  # by path
    generated: dict[int, Tensor] = field(default_factory=dict)  # by path: (H, 2), tokens
    paths: dict[int, Tensor] = field(default_factory=dict)  # by path: (H, 6), scaled


@dataclass(frozen=True)
class SuspendedPath:
    """What was in a path's slot, in the host's memory. n = its own bars."""

    tokens: Tensor  # (n + 1, 2)
    cached: list[Tensor]  # keys and values
    noise: Tensor | None  # the state of the sequence's random numbers


class ModelRunner:
    """Runs one model and its tokenizer on their device for the sequences that the scheduler picks.

    ``compute`` and ``decode`` may be called again after a failure, with the same outcome. The weights are
    copied at construction.

    Args:
        steps: makes the object that runs the decode steps; chosen by device if left out.
    """

    @torch.inference_mode()
    def __init__(
        self,
        model: Kronos,
        tokenizer: KronosTokenizer,
        *,
        max_context: int,
        num_slots: int,
        clip: float = 5.0,
        dtype: torch.dtype = torch.float32,
        steps: Callable[[Network, SlotTokens], Steps] | None = None,
    ) -> None:
        self.max_context = max_context
        self.num_slots = num_slots
        self._clip = clip
        self._coder = TokenCoder(tokenizer, dtype)
        self._network = Network(
            model,
            num_slots=num_slots + num_prompt_slots(num_slots),
            capacity=max_context + StaticSteps.NUM_SPARE_BARS,
            max_positions=2 * max_context,
            dtype=dtype,
        )
        self._device = self._network.device
        self._own = SlotTokens(num_slots, max_context, self._device)
        if steps is None:
            steps = StaticSteps if self._device.type == "cuda" else EagerSteps
        self._steps = steps(self._network, self._own)
        self._states: dict[Generation, GenerationState] = {}
        self._placed: set[Sequence] = set()  # what they need is in their slots

    def warm_up(self) -> None:
        """Run the largest steps once, and choose what to ``prepare``."""
        self._steps.warm_up()

    def prepare(self) -> bool:
        """Do one piece of work that makes later steps faster, while nothing runs. False if there is none."""
        return self._steps.prepare()

    @torch.inference_mode()
    def compute(self, chunks: Many[Chunk]) -> None:
        """Compute chunks of sequences that are not decoding."""
        for chunk in chunks:
            if chunk.phase is Phase.LOOKBACK and chunk.first == 0:
                self._states[chunk.generation] = self._start(chunk.generation)
        self._place(chunk.sequence for chunk in chunks)
        self._encode([chunk for chunk in chunks if chunk.phase is Phase.LOOKBACK])
        self._fill([chunk for chunk in chunks if chunk.phase is not Phase.BARS])
        for chunk in chunks:
            if chunk.phase is Phase.BARS:
                self._detokenize(chunk)
        for chunk in chunks:  # last, because nothing can fail after this
            if chunk.phase is Phase.LOOKBACK and chunk.last == chunk.sequence.request.lookback:
                self._states[chunk.generation].encoded = None

    def decode(self, batch: Batch) -> None:
        """Generate the next bar of every path of every sequence."""
        if not self._placed.issuperset(batch.sequences):
            self._place(batch.sequences)
        self._steps.decode(batch)

    @torch.inference_mode()
    def suspend(self, suspension: Suspension) -> None:
        """Save what the paths need to go on in other slots."""
        sequence, cut_from, slots, keeps_state = suspension
        is_placed = cut_from in self._placed
        noise = self._steps.suspend(cut_from) if is_placed else None
        if sequence is cut_from:
            self.release(sequence)
        elif is_placed:
            self._steps.resume(cut_from, noise)  # with fewer paths
        if is_placed and keeps_state and sequence.num_generated:
            saved = [
                SuspendedPath(
                    self._own.tokens[slot, : sequence.num_generated + 1].to("cpu", copy=True),
                    self._network.copy_slot(slot, sequence.num_bars_kept),
                    noise,
                )
                for slot in slots
            ]
            state = self._states[sequence.generation]
            state.suspended |= dict(zip(sequence.paths, saved, strict=True))

    @torch.inference_mode()
    def leave_slots(self, sequence: Sequence) -> None:
        """Copy the tokens of paths that have all their bars."""
        tokens = self._own.tokens[list(sequence.slots), 1 : sequence.request.horizon + 1]
        self._states[sequence.generation].generated |= dict(zip(sequence.paths, tokens, strict=True))
        self.release(sequence)

    @torch.inference_mode()
    def paths(self, sequence: Sequence) -> NDArray[np.float32]:
        """A complete sequence's paths as unscaled bars, (S, H, 6)."""
        state = self._states[sequence.generation]
        scaled = torch.stack([state.paths[path] for path in sequence.paths])
        return state.scaling.undo(scaled.cpu().numpy())

    def release(self, sequence: Sequence) -> None:
        """Forget a sequence that left its slots, or ended."""
        self._placed.discard(sequence)
        self._steps.release(sequence)

    def forget(self, generation: Generation) -> None:
        """Free all that a generation holds."""
        self._states.pop(generation, None)
        for sequence in generation.sequences:
            if sequence in self._placed:
                self.release(sequence)

    def _start(self, generation: Generation) -> GenerationState:
        request = generation.request
        scaling = Scaling.fit(request.bars)
        scaled = torch.from_numpy(scaling.apply(request.bars, self._clip)).to(self._device)
        kept_from = max(0, request.lookback - self.max_context)
        stamps = np.concatenate((request.stamps[kept_from:], request.future_stamps))
        return GenerationState(
            scaling=scaling,
            scaled=scaled,
            encoded=self._coder.encoder_cache(request.lookback),
            lookback=torch.zeros(request.lookback, 2, dtype=torch.int64, device=self._device),
            calendar=torch.from_numpy(self._network.embedding.calendar(stamps)).to(self._device),
        )

    @torch.inference_mode()
    def _place(self, sequences: Iterable[Sequence]) -> None:
        """Put what sequences begin or go on with into their new slots."""
        for sequence in sequences:
            if sequence in self._placed or sequence.phase is Phase.BARS:
                continue
            state, slots = self._states[sequence.generation], list(sequence.slots)
            own = state.calendar[sequence.prompt_length :]
            self._own.calendar[slots[0], : len(own)] = own
            self._own.tokens[slots, 0] = state.lookback[-1]
            noise = None
            for path, slot in zip(sequence.paths, slots, strict=True) if sequence.num_generated else ():
                saved = state.suspended[path]
                self._own.tokens[slot, : len(saved.tokens)] = saved.tokens.to(self._device)
                self._network.fill_slot(slot, saved.cached)
                noise = saved.noise
            self._steps.resume(sequence, noise)
            self._placed.add(sequence)
            for path in sequence.paths:
                state.suspended.pop(path, None)

    def _encode(self, chunks: Many[Chunk]) -> None:
        """Tokenize parts of lookbacks; the last bar becomes the first of each path's own."""
        if not chunks:
            return
        states = [self._states[chunk.generation] for chunk in chunks]
        parts = []
        for chunk, state in zip(chunks, states, strict=True):
            assert state.encoded is not None
            parts.append((state.encoded, PromptSegment(0, chunk.first, chunk.last)))
        bars = torch.cat(
            [state.scaled[one.first : one.last] for one, state in zip(chunks, states, strict=True)]
        )
        tokens = self._coder.encode(bars, parts)  # (N, 2)
        for chunk, state, part in zip(
            chunks, states, torch.split(tokens, [chunk.num_bars for chunk in chunks]), strict=True
        ):
            state.lookback[chunk.first : chunk.last] = part
            if chunk.last == chunk.sequence.request.lookback:
                self._own.tokens[list(chunk.sequence.slots), 0] = part[-1]

    def _fill(self, chunks: Many[Chunk]) -> None:
        """Put keys and values of prompts and of paths in windows that have slid into the cache."""
        inputs = [one for one in map(self._input_of, chunks) if one is not None]
        if not inputs:
            return
        self._network.fill(
            torch.cat([one.tokens for one in inputs]),
            torch.cat([one.calendar for one in inputs]),
            torch.cat([one.positions for one in inputs]),
            [one.segment for one in inputs],
        )

    def _input_of(self, chunk: Chunk) -> "_Input | None":
        """The transformer's input for a chunk; None if nothing of the chunk is in the context."""
        sequence, state = chunk.sequence, self._states[chunk.generation]
        prompt_length, start = sequence.prompt_length, sequence.cached_from
        prompt_slot = sequence.prompt_slot
        skipped = sequence.request.lookback - 1 - prompt_length  # bars of lookback before the context
        if chunk.phase is Phase.WINDOW_PATHS:
            num_paths, num_bars = chunk.last - chunk.first, sequence.num_generated
            slots = torch.tensor(sequence.slots[chunk.first : chunk.last], device=self._device)
            first = sequence.cached_prompt_length
            own = slice(prompt_length, prompt_length + num_bars)
            return _Input(
                tokens=self._own.tokens[slots, :num_bars].flatten(0, 1),
                calendar=state.calendar[own].repeat(num_paths, 1),
                positions=torch.arange(first, first + num_bars, device=self._device).repeat(num_paths),
                segment=PathsSegment(num_paths, num_bars, prompt_slot, (0, first), slots, sequence.own_start),
            )
        if chunk.phase is Phase.LOOKBACK:
            first, last = max(0, chunk.first - skipped), min(chunk.last - skipped, prompt_length)
        else:
            first, last = chunk.first + start, chunk.last + start
        if first >= last:
            return None
        return _Input(
            tokens=state.lookback[skipped + first : skipped + last],
            calendar=state.calendar[first:last],
            positions=torch.arange(first - start, last - start, device=self._device),
            segment=PromptSegment(prompt_slot, first - start, last - start),
        )

    def _detokenize(self, chunk: Chunk) -> None:
        """Turn some paths' tokens back into bars; they follow as much of the prompt as the context holds."""
        sequence, state = chunk.sequence, self._states[chunk.generation]
        horizon = sequence.request.horizon
        if state.prompt_bars is None:
            kept = max(0, min(sequence.prompt_length + 1, self.max_context - horizon))
            state.prompt_bars = kept, self._coder.decode_prompt(state.lookback[len(state.lookback) - kept :])
        kept, cache = state.prompt_bars
        paths = sequence.paths[chunk.first : chunk.last]
        own = torch.stack([state.generated[path] for path in paths])  # (S, H, 2)
        state.paths |= dict(zip(paths, self._coder.decode_paths(own, kept, cache), strict=True))


@dataclass(frozen=True)
class _Input:
    """The transformer's input for one chunk of N tokens."""

    tokens: Tensor  # (N, 2)
    calendar: Tensor  # (N, 2)
    positions: Tensor  # (N,)
    segment: Segment
