"""``ModelRunner``: holds the tensors of running sequences and computes their chunks and steps.

The tokens of a batch form one axis, (N, …), segment after segment, so that every linear layer runs once for
all of them. Only attention goes segment by segment.
"""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Many
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kronos_model.bars.columns import COLUMNS, Scaling
from kronos_model.engine.allocation import Suspension
from kronos_model.engine.attention import has_kernel
from kronos_model.engine.context import ContextPart, ContextPlan
from kronos_model.engine.generation import Generation
from kronos_model.engine.generation_state import GenerationState, SuspendedPath
from kronos_model.engine.kv_cache import Segment
from kronos_model.engine.network import Network
from kronos_model.engine.packed import PackedSegment, places_of
from kronos_model.engine.path_table import Batch
from kronos_model.engine.sequence import Chunk, Phase, Sequence
from kronos_model.engine.slots import num_prompt_slots
from kronos_model.engine.static_steps import StaticSteps
from kronos_model.engine.steps import EagerSteps, SlotTokens, Steps
from kronos_model.engine.tokens import CodingPlan, LookbackPart, TokenCoder
from kronos_model.engine.transfer import joined, to_device
from kronos_model.model import Kronos
from kronos_model.tokenizer import KronosTokenizer


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
        self._coder = TokenCoder(tokenizer, dtype, packs=self._packs)
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
        entering = self._not_placed(chunk.sequence for chunk in chunks)
        lookbacks = [chunk for chunk in chunks if chunk.phase is Phase.LOOKBACK]
        inputs = [
            ContextPart.of(chunk, self._states[chunk.generation])
            for chunk in chunks
            if chunk.phase is not Phase.BARS
        ]
        parts = sorted((one for one in inputs if one is not None), key=lambda one: one.lookback is None)
        placing, encoding, context = to_device(
            (
                self._plan_placing(entering),
                self._plan_encoding(lookbacks),
                ContextPlan.of(parts, packs=self._packs),
            ),
            self._device,
        )
        self._place(entering, placing)
        self._encode(lookbacks, encoding)
        self._fill(parts, context)
        self._detokenize([chunk for chunk in chunks if chunk.phase is Phase.BARS])
        for chunk in lookbacks:  # last, because nothing can fail after this
            if chunk.last == chunk.sequence.request.lookback:
                self._states[chunk.generation].encoded = None

    @torch.inference_mode()
    def decode(self, batch: Batch) -> None:
        """Generate the next bar of every path of every sequence."""
        if not self._placed.issuperset(batch.sequences):
            entering = self._not_placed(batch.sequences)
            self._place(entering, to_device(self._plan_placing(entering), self._device))
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
        last = sequence.request.horizon + 1
        tokens = torch.stack([self._own.tokens[slot, 1:last] for slot in sequence.slots])  # (S, H, 2)
        self._states[sequence.generation].generated |= dict(zip(sequence.paths, tokens, strict=True))
        self.release(sequence)

    def paths(self, sequence: Sequence) -> NDArray[np.float32]:
        """A complete sequence's paths as unscaled bars, (S, H, 6)."""
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

    def _plan_placing(self, sequences: Many[Sequence]) -> "_Placing":
        calendars = [self._states[one.generation].calendar[one.prompt_length :] for one in sequences]
        slots = [
            (number, slot)
            for number, one in enumerate(one for one in sequences if one.phase is not Phase.LOOKBACK)
            for slot in one.slots
        ]
        return _Placing(
            places_of((one.slots[0], 0, len(own)) for one, own in zip(sequences, calendars, strict=True)),
            joined(calendars, 2),
            torch.from_numpy(np.array(slots, dtype=np.int64).reshape(-1, 2)),
        )

    def _place(self, sequences: Many[Sequence], plan: "_Placing") -> None:
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
            noise = None
            for path, slot in (
                zip(sequence.paths, sequence.slots, strict=True) if sequence.num_generated else ()
            ):
                saved = state.suspended[path]
                self._own.tokens[slot, : len(saved.tokens)] = saved.tokens.to(self._device)
                self._network.fill_slot(slot, saved.cached)
                noise = saved.noise
            self._steps.resume(sequence, noise)
            self._placed.add(sequence)
            for path in sequence.paths:
                state.suspended.pop(path, None)

    def _lookback_parts(self, chunks: Iterable[Chunk]) -> list[LookbackPart]:
        """If attention is packed, the bars before a chunk are encoded again: lookbacks in parts are rare."""
        parts = []
        for chunk in chunks:
            encoded = self._states[chunk.generation].encoded
            assert encoded is not None
            parts.append(LookbackPart(encoded, 0 if self._packs else chunk.first, chunk.last))
        return parts

    def _plan_encoding(self, chunks: Many[Chunk]) -> "_Encoding":
        parts = self._lookback_parts(chunks)
        bars = [
            self._states[chunk.generation].scaled[one.first : one.last]
            for chunk, one in zip(chunks, parts, strict=True)
        ]
        ends = np.cumsum([len(one) for one in bars]) - 1
        complete = [
            (end, slot)
            for chunk, end in zip(chunks, ends, strict=True)
            if chunk.last == chunk.sequence.request.lookback
            for slot in chunk.sequence.slots
        ]
        return _Encoding(
            joined(bars, len(COLUMNS), dtype=np.float32),
            self._coder.plan_encoding(parts),
            torch.from_numpy(np.array(complete, dtype=np.int64).reshape(-1, 2)),
        )

    def _encode(self, chunks: Many[Chunk], plan: "_Encoding") -> None:
        """Tokenize parts of lookbacks; the last bar becomes the first of each path's own."""
        if not chunks:
            return
        parts = self._lookback_parts(chunks)
        tokens = self._coder.encode(plan.bars, parts, plan.coding)  # (N, 2)
        split = torch.split(tokens, [one.last - one.first for one in parts])
        for chunk, part, part_tokens in zip(chunks, parts, split, strict=True):
            state = self._states[chunk.generation]
            before = state.lookback[: part.first]
            state.lookback = torch.cat((before, part_tokens)) if part.first else part_tokens
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

    def _detokenize(self, chunks: Many[Chunk]) -> None:
        """Turn some paths' tokens back into bars; they follow as much of the prompt as the context holds."""
        series = []
        for chunk in chunks:
            sequence, state = chunk.sequence, self._states[chunk.generation]
            if state.prompt is None:
                kept = max(0, min(sequence.prompt_length + 1, self.max_context - sequence.request.horizon))
                state.prompt = self._coder.prompt(state.lookback[len(state.lookback) - kept :])
            paths = sequence.paths[chunk.first : chunk.last]
            series.append((state.prompt, [state.generated[path] for path in paths]))
        if series:
            scaled = torch.cat(self._coder.decode(series)).cpu().numpy()
            ends = np.cumsum([chunk.num_bars for chunk in chunks])
            for chunk, bars in zip(chunks, np.split(scaled, ends[:-1]), strict=True):
                paths = chunk.sequence.paths[chunk.first : chunk.last]
                by_path = np.split(bars, len(paths))
                self._states[chunk.generation].paths |= dict(zip(paths, by_path, strict=True))


class _Placing(NamedTuple):
    """What goes into slots, on the device: M bars of calendars, and the last token of lookbacks."""

    places: Tensor  # (2, M), slots and bars
    calendar: Tensor  # (M, 2)
    slots: Tensor  # (n, 2), number of the lookback and slot


class _Encoding(NamedTuple):
    """What tokenizing needs on the device: N scaled bars, and where lookbacks end."""

    bars: Tensor  # (N, 6)
    coding: CodingPlan
    complete: Tensor  # (n, 2), row of a last bar and slot
