"""``ModelRunner``: holds the tensors of running sequences and computes their chunks and steps.

The tokens of a batch form one axis, (N, …), segment after segment, so that every linear layer runs once for
all of them. Only attention goes segment by segment.
"""

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kronos_model.bars.columns import Scaling
from kronos_model.devices.heap import HeapTrimmer
from kronos_model.devices.probe import TorchProbe
from kronos_model.engine.decoding.static_steps import StaticSteps
from kronos_model.engine.decoding.steps import EagerSteps, SlotTokens, Steps
from kronos_model.engine.generation import Generation
from kronos_model.engine.prefill.inputs import (
    ContextInput,
    GenerationState,
    LookbackInput,
    PlacingInput,
    StateSlice,
    SuspendedPath,
    plan_context,
    plan_lookbacks,
    plan_placing,
    to_device,
)
from kronos_model.engine.prefill.packed import PackedSegment
from kronos_model.engine.prefill.tokens import TokenCoder
from kronos_model.engine.scheduling.path_table import Batch
from kronos_model.engine.scheduling.slots import PLACES_PER_PATH, Suspension
from kronos_model.engine.sequence import TO_BARS, Chunk, Phase, Sequence
from kronos_model.engine.transformer.attention import has_kernel
from kronos_model.engine.transformer.kv_cache import ChunkSegment, PromptSegment
from kronos_model.engine.transformer.network import Network, TorchNetwork
from kronos_model.model import Kronos
from kronos_model.tokenizer import KronosTokenizer


def default_steps(device: torch.device) -> Callable[[Any, SlotTokens], Steps]:
    """What runs decode steps on a device."""
    return StaticSteps if device.type == "cuda" else EagerSteps


class ModelRunner:
    """Runs one model and its tokenizer on their device for the sequences that the scheduler picks.

    ``compute`` and ``decode`` may be called again after a failure, with the same outcome. The weights are
    copied at construction.

    Args:
        network: computes the model; ``TorchNetwork`` on any device.
        steps: makes the object that runs the decode steps; chosen by device if left out.
        packs: whether attention in chunks is computed for all of them together; chosen by device if left out.
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
        network: Callable[..., Network] = TorchNetwork,
        steps: Callable[[Any, SlotTokens], Steps] | None = None,
        packs: bool | None = None,
    ) -> None:
        self.max_context = max_context
        self.num_slots = num_slots
        self._clip = clip
        self._packs = not has_kernel(model.head.proj_s1.weight.device) if packs is None else packs
        self._coder = TokenCoder(tokenizer, packs=self._packs)
        self._network = network(
            model,
            num_slots=PLACES_PER_PATH * num_slots,
            capacity=max_context + StaticSteps.NUM_SPARE_BARS,
            max_positions=2 * max_context,
            dtype=dtype,
        )
        self._device = self._network.device
        self._own = SlotTokens(num_slots, max_context, self._device)
        if steps is None:
            steps = default_steps(self._device)
        self._steps = steps(self._network, self._own)
        self._states: dict[Generation, GenerationState] = {}
        self._placed: set[Sequence] = set()  # what they need is in their slots
        self._trimmer = HeapTrimmer()

    def warm_up(self) -> None:
        """Run the largest steps once, and choose what to ``prepare``."""
        self._steps.warm_up()

    def prepare(self) -> bool:
        """Do one piece of work that makes later steps faster, while nothing runs. False if there is none."""
        return self._steps.prepare()

    @torch.inference_mode()
    def compute(self, chunks: tuple[Chunk, ...]) -> None:
        """Compute chunks of sequences that are not decoding."""
        lookbacks: list[Chunk] = []
        in_context: list[Chunk] = []
        to_bars: list[Chunk] = []
        for chunk in chunks:
            if chunk.phase is Phase.LOOKBACK:
                lookbacks.append(chunk)
                if chunk.first == 0:
                    self._states[chunk.generation] = self._start(chunk.generation)
            (to_bars if chunk.phase in TO_BARS else in_context).append(chunk)
        entering = self._not_placed(map(attrgetter("sequence"), chunks))
        coded, encoding = plan_lookbacks(lookbacks, self._states, packs=self._packs)
        segments, prompts, context = plan_context(in_context, self._states, packs=self._packs)
        placing = plan_placing(entering, self._states)
        placing, encoding, context = to_device((placing, encoding, context), self._device)
        if entering:
            self._place(entering, placing)
        if lookbacks:
            self._encode(lookbacks, coded, encoding)
        if segments:
            self._fill(segments, prompts, context)
        if to_bars:
            self._detokenize(to_bars)
        for chunk in lookbacks:  # last, because nothing can fail after this
            if chunk.last == chunk.sequence.request.lookback:
                self._states[chunk.generation].encoded = None

    @torch.inference_mode()
    def decode(self, batch: Batch) -> None:
        """Generate the next bar of every path of every sequence."""
        if not self._placed.issuperset(batch.sequences):
            entering = self._not_placed(batch.sequences)
            self._place(entering, to_device(plan_placing(entering, self._states), self._device))
        self._steps.decode(batch)

    @torch.inference_mode()
    def suspend(self, suspension: Suspension) -> None:
        """Save what the paths need to go on in other slots."""
        sequence, cut_from, slots, keeps_state = suspension
        is_placed = cut_from in self._placed
        if sequence is cut_from:
            self.release(sequence)
        if is_placed and keeps_state and sequence.num_generated:
            saved = [
                SuspendedPath(
                    self._own.tokens[slot, : sequence.num_generated + 1].to("cpu", copy=True),
                    self._network.copy_slot(slot, sequence.num_bars_kept),
                )
                for slot in slots
            ]
            state = self._states[sequence.generation]
            state.suspended |= dict(zip(sequence.paths, saved, strict=True))

    @torch.inference_mode()
    def leave_slots(self, sequence: Sequence) -> None:
        """Copy the tokens of paths that have all their bars."""
        tokens = dict(zip(sequence.paths, self._generated(sequence, sequence.slots), strict=True))
        self._states[sequence.generation].generated |= tokens
        self.release(sequence)

    def paths(self, sequence: Sequence) -> NDArray[np.float32]:
        """The bars of a sequence's paths, unscaled, (S, n, 6): all, or those that were computed early."""
        state = self._states[sequence.generation]
        return state.scaling.undo(np.stack([*map(state.paths.__getitem__, sequence.paths)]))

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
        self._trimmer.trim_if_due()

    def is_lost(self) -> bool:
        """Whether the device no longer computes anything."""
        return TorchProbe().is_lost(self._device)

    def _start(self, generation: Generation) -> GenerationState:
        request = generation.request
        scaling = Scaling.fit(request.bars)
        kept_from = max(0, request.lookback - self.max_context)
        stamps = np.concatenate((request.stamps[kept_from:], request.future_stamps))
        return GenerationState(
            scaling=scaling,
            scaled=scaling.apply(request.bars, self._clip),
            calendar=self._network.embedding.calendar(stamps),
            encoded=self._coder.encoder_cache(request.lookback),
            lookback=torch.empty(0, 2),
        )

    def _not_placed(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        entering = []
        for sequence in sequences:
            if sequence not in self._placed and sequence.phase is not Phase.BARS:
                entering.append(sequence)
        return entering

    def _place(self, sequences: list[Sequence], given: PlacingInput) -> None:
        """Put what sequences begin or go on with into their new slots."""
        slots, bars = given.places
        self._own.calendar[slots, bars] = given.calendar
        last_tokens = []
        for sequence in sequences:
            if sequence.phase is not Phase.LOOKBACK:
                last_tokens.append(self._states[sequence.generation].lookback[-1:])
        if last_tokens:
            owners, slots = given.last_tokens.unbind(1)
            self._own.tokens[slots, 0] = torch.cat(last_tokens)[owners]
        for sequence in sequences:
            suspended = self._states[sequence.generation].suspended
            if sequence.num_generated:
                for path, slot in zip(sequence.paths, sequence.slots, strict=True):
                    saved = suspended[path]
                    self._own.tokens[slot, : len(saved.tokens)] = saved.tokens.to(self._device)
                    self._network.fill_slot(slot, saved.cached)
            self._placed.add(sequence)
            for path in sequence.paths:
                suspended.pop(path, None)

    def _encode(self, chunks: list[Chunk], segments: list[PromptSegment], given: LookbackInput) -> None:
        """Tokenize parts of lookbacks; the last bar becomes the first of each path's own."""
        caches = []
        for chunk in chunks:
            cache = self._states[chunk.generation].encoded
            assert cache is not None  # until the lookback is tokenized
            caches.append(cache)
        tokens = self._coder.encode(given.bars, given.positions, segments, caches, given.packed)
        num_rows = 0
        for chunk, segment in zip(chunks, segments, strict=True):
            state = self._states[chunk.generation]
            first_row, num_rows = num_rows, num_rows + segment.num_tokens
            added, before = tokens[first_row:num_rows], state.lookback[: segment.first]
            state.lookback = torch.cat((before, added)) if segment.first else added
        ends, slots = given.last_tokens.unbind(1)
        self._own.tokens[slots, 0] = tokens[ends]

    def _fill(self, segments: list[ChunkSegment], prompts: list[StateSlice], given: ContextInput) -> None:
        """Put keys and values of prompts and of paths in windows that have slid into the cache."""
        tokens = [state.lookback[bars] for state, bars in prompts]
        if len(tokens) < len(segments):
            slots, bars = given.own_tokens
            tokens.append(self._own.tokens[slots, bars])
        packed = [PackedSegment(plan, self._network.kept_as) for plan in given.packed]
        self._network.fill(torch.cat(tokens), given.calendar, given.positions, packed or segments)

    def _generated(self, sequence: Sequence, slots: tuple[int, ...]) -> Tensor:
        """A copy of the tokens that were generated in some of a sequence's slots, (S, n, 2)."""
        last = sequence.num_generated + 1
        return torch.stack([self._own.tokens[slot, 1:last] for slot in slots])

    def _detokenize(self, chunks: list[Chunk]) -> None:
        """Turn some paths' tokens back into bars; they follow as much of the prompt as the context holds."""
        series = []
        for chunk in chunks:
            sequence, state = chunk.sequence, self._states[chunk.generation]
            if state.prompt is None:
                kept = max(0, min(sequence.prompt_length + 1, self.max_context - sequence.request.horizon))
                state.prompt = self._coder.prompt(state.lookback[len(state.lookback) - kept :])
            if chunk.phase is Phase.BARS:
                tokens = [state.generated[path] for path in sequence.paths[chunk.first : chunk.last]]
            else:
                tokens = list(self._generated(sequence, sequence.slots[chunk.first : chunk.last]))
            series.append((state.prompt, tokens))
        scaled = self._coder.decode(series).cpu().numpy()
        num_rows = 0
        for chunk in chunks:
            paths = self._states[chunk.generation].paths
            for path in chunk.sequence.paths[chunk.first : chunk.last]:
                first_row, num_rows = num_rows, num_rows + chunk.num_bars // (chunk.last - chunk.first)
                paths[path] = scaled[first_row:num_rows]
