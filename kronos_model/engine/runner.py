"""``ModelRunner``: holds the tensors of running sequences and computes their chunks and steps.

The tokens of a batch form one axis, (N, …), segment after segment, so that every linear layer runs once for
all of them. Only attention goes segment by segment.
"""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Many

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kronos_model.bars.columns import Scaling
from kronos_model.devices.probe import TorchProbe
from kronos_model.engine.chunks.context import ContextPart, ContextPlan
from kronos_model.engine.chunks.generation_state import GenerationState, SuspendedPath
from kronos_model.engine.chunks.lookbacks import LookbackPart, LookbackPlan
from kronos_model.engine.chunks.packed import PackedSegment
from kronos_model.engine.chunks.placing import PlacingPlan
from kronos_model.engine.chunks.tokens import TokenCoder
from kronos_model.engine.chunks.transfer import to_device
from kronos_model.engine.decoding.steps import EagerSteps, SlotTokens, Steps
from kronos_model.engine.generation import Generation
from kronos_model.engine.gpu.static_steps import StaticSteps
from kronos_model.engine.scheduling.allocation import Suspension
from kronos_model.engine.scheduling.path_table import Batch
from kronos_model.engine.scheduling.slots import PLACES_PER_PATH
from kronos_model.engine.sequence import Chunk, Phase, Sequence
from kronos_model.engine.transformer.attention import has_kernel
from kronos_model.engine.transformer.kv_cache import Segment
from kronos_model.engine.transformer.network import Network
from kronos_model.model import Kronos
from kronos_model.tokenizer import KronosTokenizer

TO_BARS = (Phase.EARLY_BARS, Phase.BARS)


class ModelRunner:
    """Runs one model and its tokenizer on their device for the sequences that the scheduler picks.

    ``compute`` and ``decode`` may be called again after a failure, with the same outcome. The weights are
    copied at construction.

    Args:
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
        steps: Callable[[Network, SlotTokens], Steps] | None = None,
        packs: bool | None = None,
    ) -> None:
        self.max_context = max_context
        self.num_slots = num_slots
        self._clip = clip
        self._packs = not has_kernel(model.head.proj_s1.weight.device) if packs is None else packs
        self._coder = TokenCoder(tokenizer, packs=self._packs)
        self._network = Network(
            model,
            num_slots=PLACES_PER_PATH * num_slots,
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
        entering = self._not_placed(chunk.sequence for chunk in chunks)
        lookbacks = [
            LookbackPart.of(chunk, self._states[chunk.generation], packs=self._packs)
            for chunk in chunks
            if chunk.phase is Phase.LOOKBACK
        ]
        inputs = [
            ContextPart.of(chunk, self._states[chunk.generation])
            for chunk in chunks
            if chunk.phase not in TO_BARS
        ]
        parts = sorted((one for one in inputs if one is not None), key=lambda one: one.lookback is None)
        placing, encoding, context = to_device(
            (
                PlacingPlan.of(entering, self._states),
                LookbackPlan.of(lookbacks, self._coder),
                ContextPlan.of(parts, packs=self._packs),
            ),
            self._device,
        )
        self._place(entering, placing)
        self._encode(lookbacks, encoding)
        self._fill(parts, context)
        self._detokenize([chunk for chunk in chunks if chunk.phase in TO_BARS])
        for one in lookbacks:  # last, because nothing can fail after this
            if one.is_last:
                one.state.encoded = None

    @torch.inference_mode()
    def decode(self, batch: Batch) -> None:
        """Generate the next bar of every path of every sequence."""
        if not self._placed.issuperset(batch.sequences):
            entering = self._not_placed(batch.sequences)
            self._place(entering, to_device(PlacingPlan.of(entering, self._states), self._device))
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
        return state.scaling.undo(np.stack([state.paths[path] for path in sequence.paths]))

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
        )

    def _not_placed(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        return [one for one in sequences if one not in self._placed and one.phase is not Phase.BARS]

    def _place(self, sequences: Many[Sequence], plan: PlacingPlan) -> None:
        """Put what sequences begin or go on with into their new slots."""
        if not sequences:
            return
        slots, bars = plan.places
        self._own.calendar[slots, bars] = plan.calendar
        tokenized = [one for one in sequences if one.phase is not Phase.LOOKBACK]
        if tokenized:
            owners, slots = plan.slots.unbind(1)
            last_tokens = [self._states[one.generation].lookback[-1:] for one in tokenized]
            self._own.tokens[slots, 0] = torch.cat(last_tokens)[owners]
        for sequence in sequences:
            state = self._states[sequence.generation]
            for path, slot in (
                zip(sequence.paths, sequence.slots, strict=True) if sequence.num_generated else ()
            ):
                saved = state.suspended[path]
                self._own.tokens[slot, : len(saved.tokens)] = saved.tokens.to(self._device)
                self._network.fill_slot(slot, saved.cached)
            self._placed.add(sequence)
            for path in sequence.paths:
                state.suspended.pop(path, None)

    def _encode(self, parts: Many[LookbackPart], plan: LookbackPlan) -> None:
        """Tokenize parts of lookbacks; the last bar becomes the first of each path's own."""
        if not parts:
            return
        tokens = self._coder.encode(plan.bars, [(one.cache, one.segment) for one in parts], plan.coding)
        for one, added in zip(
            parts, torch.split(tokens, [one.segment.num_tokens for one in parts]), strict=True
        ):
            first = one.segment.first
            one.state.lookback = torch.cat((one.state.lookback[:first], added)) if first else added
        ends, slots = plan.complete.unbind(1)
        self._own.tokens[slots, 0] = tokens[ends]

    def _fill(self, parts: Many[ContextPart], plan: ContextPlan) -> None:
        """Put keys and values of prompts and of paths in windows that have slid into the cache."""
        if not parts:
            return
        slots, bars = plan.own_tokens
        tokens = [one.state.lookback[one.lookback] for one in parts if one.lookback is not None]
        if len(tokens) < len(parts):
            tokens.append(self._own.tokens[slots, bars])
        segments: list[Segment] = [PackedSegment(one, self._network.kept_as) for one in plan.packed]
        self._network.fill(
            torch.cat(tokens), plan.calendar, plan.positions, segments or [one.segment for one in parts]
        )

    def _generated(self, sequence: Sequence, slots: Many[int]) -> Tensor:
        """A copy of the tokens that were generated in some of a sequence's slots, (S, n, 2)."""
        last = sequence.num_generated + 1
        return torch.stack([self._own.tokens[slot, 1:last] for slot in slots])

    def _detokenize(self, chunks: Many[Chunk]) -> None:
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
        if series:
            scaled = torch.cat(self._coder.decode(series)).cpu().numpy()
            ends = np.cumsum([chunk.num_bars for chunk in chunks])
            for chunk, bars in zip(chunks, np.split(scaled, ends[:-1]), strict=True):
                paths = chunk.sequence.paths[chunk.first : chunk.last]
                by_path = np.split(bars, len(paths))
                self._states[chunk.generation].paths |= dict(zip(paths, by_path, strict=True))
