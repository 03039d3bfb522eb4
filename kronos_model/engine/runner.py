"""The engine's tensors: chunks, decode steps and the way back to bars. Decides nothing.

A batch's tokens lie flat, (N, …), segment after segment, so that every linear layer runs once for all of
them; only attention goes by segments. R = paths of all sequences in a step.
"""

from collections.abc import Sequence as Many
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kronos_model.candles import Scaling
from kronos_model.engine.embedding import BarEmbedding
from kronos_model.engine.kv_cache import DecodeSegment, KVCache, PathsSegment, PromptSegment, Segment
from kronos_model.engine.linear import Affine, FusedLinear
from kronos_model.engine.noise import NoiseSource
from kronos_model.engine.reads import newest_position, plan_own_reads, plan_prompt_reads
from kronos_model.engine.running import Chunk, Phase, Sequence
from kronos_model.engine.sampling import RowParams, sample
from kronos_model.engine.stack import BlockStack
from kronos_model.engine.tokens import TokenCoder
from kronos_model.model import DEPENDENCY_HEADS, Kronos
from kronos_model.tokenizer import KronosTokenizer


@dataclass(eq=False)
class SequenceState:
    """What a running sequence holds beside its slots. T = lookback, P = prompt length, H = horizon."""

    scaling: Scaling
    scaled: Tensor  # (T, 6)
    encoded: KVCache | None  # of the tokenizer's encoder, while the lookback is tokenized
    lookback: Tensor  # (T, 2), tokens
    calendar: Tensor  # (P + 1 + H, 2), rows of the embedding's table
    noise: NoiseSource
    prompt_bars: tuple[int, KVCache] | None = None  # bars of the prompt in the tokenizer's decoder
    paths: dict[int, Tensor] = field(default_factory=dict)  # by the first path: (S, H, 6), scaled


@dataclass(frozen=True)
class Rows:
    """The rows of a step that stay the same while the same sequences run."""

    sequences: tuple[Sequence, ...]
    counts: NDArray[np.int64]  # paths of each sequence
    slots: Tensor  # (R,)
    leads: Tensor  # (R,), the first slot of each row's sequence
    params: RowParams


class ModelRunner:
    """Runs one model and its tokenizer on their device for the sequences that the scheduler picks.

    Neither ``compute`` nor ``decode`` leaves anything behind that would change its outcome when it failed and
    is called again. The weights are taken as they are at construction.
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
    ) -> None:
        self.max_context = max_context
        self.num_slots = num_slots
        self._clip = clip
        self._device = model.head.proj_s1.weight.device
        # The CPU's attention is fast in float32 only; a GPU's cache is read faster the smaller it is.
        cache_dtype = torch.float32 if self._device.type == "cpu" else dtype

        self._coder = TokenCoder(tokenizer, dtype)
        self._embedding = BarEmbedding(model)
        self._transformer = BlockStack(model.transformer, dtype)
        self._transformer.reserve_positions(2 * max_context)
        self._blocks = self._transformer.new_cache(
            num_slots, max_context, device=self._device, dtype=cache_dtype
        )
        self._norm = model.norm

        attention = model.dep_layer.cross_attn
        self._dependency = KVCache(
            1,
            num_slots,
            DEPENDENCY_HEADS,
            max_context,
            attention.head_dim,
            device=self._device,
            dtype=cache_dtype,
        )
        self._dependency_norm = model.dep_layer.norm
        self._dependency_kv = FusedLinear(
            Affine.of(attention.k_proj), Affine.of(attention.v_proj), dtype=dtype
        )
        self._dependency_out = FusedLinear(Affine.of(attention.out_proj), dtype=dtype)
        # The sibling query is a row of the embedding, projected: one table serves all steps.
        queries = attention.q_proj(model.embedding.emb_s1.weight).detach()
        self._sibling_queries = queries.view(len(queries), DEPENDENCY_HEADS, -1)  # (vocabulary, H, head_dim)
        self._s1_head = FusedLinear(Affine.of(model.head.proj_s1), dtype=dtype)
        self._s2_head = FusedLinear(Affine.of(model.head.proj_s2), dtype=dtype)
        self._vocabularies = model.head.proj_s1.out_features, model.head.proj_s2.out_features

        # A path's own tokens, the lookback's last and H that follow, and, in a sequence's first slot, the
        # calendar of its own bars.
        self._own = torch.zeros(num_slots, max_context + 1, 2, dtype=torch.int64, device=self._device)
        self._own_calendar = torch.zeros_like(self._own)
        self._states: dict[Sequence, SequenceState] = {}
        self._rows: Rows | None = None

    @torch.inference_mode()
    def compute(self, chunks: Many[Chunk]) -> None:
        """Chunks of sequences that are not decoding."""
        for chunk in chunks:
            if chunk.sequence not in self._states:
                self._states[chunk.sequence] = self._start(chunk.sequence)
        self._encode([chunk for chunk in chunks if chunk.phase is Phase.LOOKBACK])
        self._fill([chunk for chunk in chunks if chunk.phase is not Phase.BARS])
        for chunk in chunks:
            if chunk.phase is Phase.BARS:
                self._detokenize(chunk)
            elif chunk.last == chunk.sequence.request.lookback:
                self._states[chunk.sequence].encoded = None

    @torch.inference_mode()
    def decode(self, sequences: tuple[Sequence, ...]) -> None:
        """Generate the next bar of every path of every sequence."""
        rows = self._rows_of(sequences)
        generated = np.array([sequence.num_generated for sequence in sequences])
        positions = np.array([newest_position(sequence) for sequence in sequences])
        newest, places = (
            torch.from_numpy(np.repeat(per_sequence, rows.counts)).to(self._device)
            for per_sequence in (generated, positions)
        )
        segment = DecodeSegment(
            rows.slots, places % self.max_context, plan_own_reads(sequences), plan_prompt_reads(sequences)
        )
        x = self._embedding(self._own[rows.slots, newest], self._own_calendar[rows.leads, newest])
        context = self._norm(self._transformer.run(x, places, [(self._blocks, segment)]))  # (R, d_model)
        segment.store(self._dependency, 0, *self._dependency_kv_of(context))

        noise = [self._states[one].noise.draw(one.num_generated) for one in sequences]
        s1_noise, s2_noise = (_joined(drawn).to(self._device) for drawn in zip(*noise, strict=True))
        s1 = sample(self._s1_head(context), rows.params, s1_noise)
        informed = segment.read(self._dependency, 0, self._sibling_queries[s1])
        informed = self._dependency_norm(context + self._dependency_out(informed.float().flatten(1)))
        s2 = sample(self._s2_head(informed), rows.params, s2_noise)
        self._own[rows.slots, newest + 1] = torch.stack((s1, s2), dim=-1)

    def next_round(self, sequence: Sequence) -> None:
        """The sequence goes on with other paths of its generation."""
        state = self._states[sequence]
        state.noise = NoiseSource(sequence, *self._vocabularies)
        state.paths.clear()
        self._rows = None

    @torch.inference_mode()
    def paths(self, sequence: Sequence) -> NDArray[np.float32]:
        """A complete sequence's paths as unscaled bars, (S, H, 6)."""
        state = self._states[sequence]
        return state.scaling.undo(
            torch.cat([state.paths[first] for first in sorted(state.paths)]).cpu().numpy()
        )

    def release(self, sequence: Sequence) -> None:
        """Free what the sequence holds beside its slots."""
        self._states.pop(sequence, None)
        self._rows = None

    def _start(self, sequence: Sequence) -> SequenceState:
        request = sequence.request
        scaling = Scaling.fit(request.bars)
        scaled = torch.from_numpy(scaling.apply(request.bars, self._clip)).to(self._device)
        own_from = request.lookback - 1 - sequence.prompt_length
        stamps = np.concatenate((request.stamps[own_from:], request.future_stamps))
        calendar = torch.from_numpy(self._embedding.calendar(stamps)).to(self._device)
        own = calendar[sequence.prompt_length :]
        self._own_calendar[sequence.slots[0], : len(own)] = own
        return SequenceState(
            scaling=scaling,
            scaled=scaled,
            encoded=self._coder.encoder_cache(request.lookback),
            lookback=torch.zeros(request.lookback, 2, dtype=torch.int64, device=self._device),
            calendar=calendar,
            noise=NoiseSource(sequence, *self._vocabularies),
        )

    def _encode(self, chunks: Many[Chunk]) -> None:
        """Tokenize parts of lookbacks; the last bar becomes the first of each path's own."""
        if not chunks:
            return
        states = [self._states[chunk.sequence] for chunk in chunks]
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
                self._own[list(chunk.sequence.slots), 0] = part[-1]

    def _fill(self, chunks: Many[Chunk]) -> None:
        """Put keys and values of prompts and of paths in windows that have slid into the cache."""
        inputs = [one for one in map(self._input_of, chunks) if one is not None]
        if not inputs:
            return
        tokens = torch.cat([one.tokens for one in inputs])
        x = self._embedding(tokens, torch.cat([one.calendar for one in inputs]))
        parts: list[tuple[KVCache, Segment]] = [(self._blocks, one.segment) for one in inputs]
        context = self._norm(self._transformer.run(x, torch.cat([one.positions for one in inputs]), parts))
        k, v = self._dependency_kv_of(context)
        sizes = [one.segment.num_tokens for one in inputs]
        for one, *kv in zip(inputs, torch.split(k, sizes), torch.split(v, sizes), strict=True):
            one.segment.store(self._dependency, 0, *kv)

    def _input_of(self, chunk: Chunk) -> "_Input | None":
        """What the transformer reads of a chunk; None where nothing of it is in the context."""
        sequence, state = chunk.sequence, self._states[chunk.sequence]
        prompt_length, start = sequence.prompt_length, sequence.cached_from
        skipped = sequence.request.lookback - 1 - prompt_length  # bars of lookback before the context
        if chunk.phase is Phase.WINDOW_PATHS:
            num_paths, num_bars = chunk.last - chunk.first, sequence.num_generated
            slots = torch.tensor(sequence.slots[chunk.first : chunk.last], device=self._device)
            first = prompt_length - start
            own = slice(prompt_length, prompt_length + num_bars)
            return _Input(
                tokens=self._own[slots, :num_bars].flatten(0, 1),
                calendar=state.calendar[own].repeat(num_paths, 1),
                positions=torch.arange(first, first + num_bars, device=self._device).repeat(num_paths),
                segment=PathsSegment(num_paths, num_bars, sequence.slots[0], (0, first), slots, first),
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
            segment=PromptSegment(sequence.slots[0], first - start, last - start),
        )

    def _detokenize(self, chunk: Chunk) -> None:
        """Turn some paths' tokens back into bars, behind as much of the prompt as the context holds."""
        sequence, state = chunk.sequence, self._states[chunk.sequence]
        horizon = sequence.request.horizon
        if state.prompt_bars is None:
            kept = max(0, min(sequence.prompt_length + 1, self.max_context - horizon))
            state.prompt_bars = kept, self._coder.decode_prompt(state.lookback[len(state.lookback) - kept :])
        kept, cache = state.prompt_bars
        own = self._own[list(sequence.slots[chunk.first : chunk.last]), 1 : horizon + 1]  # (S, H, 2)
        state.paths[chunk.first] = self._coder.decode_paths(own, kept, cache)

    def _dependency_kv_of(self, context: Tensor) -> Many[Tensor]:
        """Keys and values of the dependency-aware layer, each (N, H, head_dim)."""
        kv = self._dependency_kv(context).view(len(context), 2 * DEPENDENCY_HEADS, -1)
        return kv.chunk(2, dim=1)

    def _rows_of(self, sequences: tuple[Sequence, ...]) -> Rows:
        if self._rows is None or self._rows.sequences != sequences:
            counts = np.array([sequence.num_paths for sequence in sequences])
            slots = [slot for sequence in sequences for slot in sequence.slots]
            leads = np.repeat([sequence.slots[0] for sequence in sequences], counts)
            sampling = [one.request.sampling for one in sequences for _ in range(one.num_paths)]
            self._rows = Rows(
                sequences,
                counts,
                torch.tensor(slots, device=self._device),
                torch.from_numpy(leads).to(self._device),
                RowParams.of(sampling, self._device),
            )
        return self._rows


@dataclass(frozen=True)
class _Input:
    """What the transformer reads of one chunk, N tokens."""

    tokens: Tensor  # (N, 2)
    calendar: Tensor  # (N, 2)
    positions: Tensor  # (N,)
    segment: Segment


def _joined(parts: Many[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
