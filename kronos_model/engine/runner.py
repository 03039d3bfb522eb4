"""The engine's tensors: prefill, decode step and the way back to bars. Decides nothing.

A step's tokens lie flat, (N, …), chunk after chunk, so that every linear layer runs once for all sequences;
only attention goes chunk by chunk. R = paths of all sequences in the step.
"""

from collections.abc import Sequence as Many
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kronos_model.candles import Scaling
from kronos_model.engine.kv_cache import Chunk, KVCache, OwnChunk, PromptChunk
from kronos_model.engine.linear import FusedLinear
from kronos_model.engine.sampling import NoiseSource, RowParams, sample
from kronos_model.engine.sequence import Sequence
from kronos_model.engine.stack import BlockStack, new_cache, split_heads
from kronos_model.model import DEPENDENCY_HEADS, Kronos
from kronos_model.tokenizer import KronosTokenizer

MAX_DETOKENIZED_BARS = 4096
"""Bars that the tokenizer's decoder turns back at once; bounds its memory for many long paths."""


@dataclass(eq=False)
class SequenceState:
    """What a running sequence holds on the device. L = prompt length, S = paths, H = horizon."""

    scaling: Scaling
    prompt: Tensor  # (2, 1, L), s1 and s2
    own: Tensor  # (2, S, H), valid up to num_generated
    stamps: Tensor  # (L + H, 5)
    blocks: KVCache
    dependency: KVCache
    noise: NoiseSource

    @property
    def prompt_length(self) -> int:
        return self.prompt.shape[-1]


@dataclass
class FlatBatch:
    """The tokens of one forward pass."""

    tokens: list[Tensor] = field(default_factory=list)  # (2, N)
    stamps: list[Tensor] = field(default_factory=list)  # (N, 5)
    positions: list[Tensor] = field(default_factory=list)  # (N,)
    chunks: list[tuple[SequenceState, Chunk]] = field(default_factory=list)
    newest: list[Tensor] = field(default_factory=list)  # (R,), the row of each path's newest token
    num_tokens: int = 0

    def add(self, state: SequenceState, chunk: Chunk, tokens: Tensor, stamps: Tensor, position: int) -> None:
        """Append tokens (2, rows, n) with their stamps (n, 5), the first at ``position`` of the window."""
        _, rows, length = tokens.shape
        self.tokens.append(tokens.reshape(2, -1))
        self.stamps.append(stamps.repeat(rows, 1))
        self.positions.append(torch.arange(position, position + length, device=tokens.device).repeat(rows))
        self.chunks.append((state, chunk))
        self.num_tokens += rows * length


class ModelRunner:
    """Runs one model and its tokenizer on their device for the sequences the scheduler picks.

    ``run`` changes a sequence's state only when the whole step has succeeded, so that a step that failed
    can be run again for each sequence alone. The weights are taken as they are at construction.
    """

    @torch.inference_mode()
    def __init__(self, model: Kronos, tokenizer: KronosTokenizer, *, max_context: int, clip: float) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.max_context = max_context
        self.clip = clip
        self.device = model.head.proj_s1.weight.device
        self._transformer = BlockStack(model.transformer, max_context)
        self._decoder = BlockStack(tokenizer.decoder, max_context)
        attention = model.dep_layer.cross_attn
        self._dependency_kv = FusedLinear(attention.k_proj, attention.v_proj)
        self._dependency_out = FusedLinear(attention.out_proj)
        # The sibling query is a row of the embedding, projected: one table serves all steps.
        self._sibling_queries = attention.q_proj(
            model.embedding.emb_s1.weight
        ).detach()  # (vocabulary, d_model)
        self._s1_head, self._s2_head = FusedLinear(model.head.proj_s1), FusedLinear(model.head.proj_s2)
        self._states: dict[Sequence, SequenceState] = {}

    @torch.inference_mode()
    def run(self, sequences: Many[Sequence]) -> None:
        """Generate the next bar of every path of every sequence; a new one is prefilled first."""
        states = [self._states.get(sequence) or self._start(sequence) for sequence in sequences]
        batch = FlatBatch()
        for sequence, state in zip(sequences, states, strict=True):
            self._plan(batch, sequence, state)
        context = self._forward(batch)  # (R, d_model)
        s1, s2 = self._sample(context, sequences, states, dict(batch.chunks))
        first_row = 0
        for sequence, state in zip(sequences, states, strict=True):
            rows = slice(first_row, first_row + sequence.num_paths)
            state.own[0, :, sequence.num_generated] = s1[rows]
            state.own[1, :, sequence.num_generated] = s2[rows]
            state.noise.commit()
            self._states[sequence] = state
            first_row = rows.stop

    def release(self, sequence: Sequence) -> None:
        """Free what the sequence holds."""
        self._states.pop(sequence, None)

    def _start(self, sequence: Sequence) -> SequenceState:
        """Scale and tokenize the lookback; allocate the caches."""
        request = sequence.request
        scaling = Scaling.fit(request.bars)
        scaled = torch.from_numpy(scaling.apply(request.bars, self.clip)).to(self.device)
        s1, s2 = self.tokenizer.encode(scaled.unsqueeze(0))  # (1, T) each; all of the lookback is encoded
        prompt = torch.stack((s1, s2))[..., -self.max_context :]  # (2, 1, L)
        prompt_length = prompt.shape[-1]
        stamps = np.concatenate((request.stamps[-prompt_length:], request.future_stamps))
        # The last bar is never read back, so one bar less than the horizon is cached.
        capacity = min(request.horizon, self.max_context) - 1
        paths = sequence.num_paths
        return SequenceState(
            scaling=scaling,
            prompt=prompt,
            own=prompt.new_zeros(2, paths, request.horizon),
            stamps=torch.from_numpy(stamps).to(self.device),
            blocks=self._transformer.new_cache(paths, capacity),
            dependency=new_cache([self.model.dep_layer.cross_attn], paths, capacity),
            noise=NoiseSource(sequence),
        )

    def _plan(self, batch: FlatBatch, sequence: Sequence, state: SequenceState) -> None:
        """Add what must be computed before the sequence's next bar: all of it at first, then one bar.

        Once the window slides, positions shift and every layer's keys change with them, so the window is
        computed anew for each bar: the prompt that is left once for all paths, then their own bars.
        """
        prompt_length, generated, paths = state.prompt_length, sequence.num_generated, sequence.num_paths
        slid = max(0, prompt_length + generated - self.max_context)
        if generated == 0 or slid:
            prompt = state.prompt[..., slid:]
            length = prompt_length - slid
            batch.add(state, PromptChunk(length), prompt, state.stamps[slid:prompt_length], 0)
        if generated:
            start = 0 if slid else generated - 1
            chunk = OwnChunk(paths, generated - start, start)
            own = state.own[..., start:generated]
            first = prompt_length + start
            batch.add(state, chunk, own, state.stamps[first : prompt_length + generated], first - slid)
            ends = torch.arange(batch.num_tokens - chunk.num_tokens, batch.num_tokens, device=self.device)
            batch.newest.append(ends[chunk.length - 1 :: chunk.length])
        else:
            batch.newest.append(torch.full((paths,), batch.num_tokens - 1, device=self.device))

    def _forward(self, batch: FlatBatch) -> Tensor:
        """The context of each path's newest token, (R, d_model); fills the caches on the way."""
        tokens = torch.cat(batch.tokens, dim=1)
        positions = torch.cat(batch.positions)
        x = self.model.embed(tokens[0], tokens[1], torch.cat(batch.stamps))  # (N, d_model)
        chunks = [(state.blocks, chunk) for state, chunk in batch.chunks]
        context: Tensor = self.model.norm(self._transformer.run(x, chunks, positions))
        k, v = split_heads(self._dependency_kv(context), 2 * DEPENDENCY_HEADS).chunk(2, dim=1)
        first = 0
        for state, chunk in batch.chunks:
            rows = slice(first, first + chunk.num_tokens)
            chunk.store(state.dependency, 0, k[rows], v[rows])
            first = rows.stop
        return context[torch.cat(batch.newest)]

    def _sample(
        self,
        context: Tensor,
        sequences: Many[Sequence],
        states: Many[SequenceState],
        last_chunk: dict[SequenceState, Chunk],
    ) -> tuple[Tensor, Tensor]:
        """s1 from the context, then s2 given s1: each (R,)."""
        rows = [sequence.request.sampling for sequence in sequences for _ in range(sequence.num_paths)]
        params = RowParams.of(rows, self.device)

        def draw(name: str, logits: Tensor) -> Tensor:
            noise = torch.cat([state.noise.draw(name, logits.shape[-1]) for state in states])
            return sample(logits, params, noise.to(self.device))

        s1 = draw("s1", self._s1_head(context))
        q = split_heads(self._sibling_queries[s1], DEPENDENCY_HEADS)
        paths = [sequence.num_paths for sequence in sequences]
        by_sequence = torch.split(q.unsqueeze(2), paths)  # (S, H, 1, head_dim) each
        mixed = [
            state.dependency.attend(0, query, last_chunk[state].own_length)
            for state, query in zip(states, by_sequence, strict=True)
        ]
        informed = self.model.dep_layer.norm(context + self._dependency_out(torch.cat(mixed).flatten(1)))
        return s1, draw("s2", self._s2_head(informed))

    @torch.inference_mode()
    def detokenize(self, sequence: Sequence) -> NDArray[np.float32]:
        """A complete sequence's paths as unscaled bars, (S, H, 6)."""
        state, horizon = self._states[sequence], sequence.request.horizon
        kept_prompt = max(0, min(state.prompt_length + horizon, self.max_context) - horizon)
        prompt = state.prompt[..., state.prompt_length - kept_prompt :]
        paths_at_once = max(1, MAX_DETOKENIZED_BARS // horizon)
        parts = [self._decode(prompt, own) for own in torch.split(state.own, paths_at_once, dim=1)]
        return state.scaling.undo(torch.cat(parts).float().cpu().numpy())

    def _decode(self, prompt: Tensor, own: Tensor) -> Tensor:
        """Tokens of a prompt (2, 1, P) and of paths (2, S, H) → scaled bars of the paths (S, H, 6)."""
        _, paths, horizon = own.shape
        prompt_length = prompt.shape[-1]
        cache = self._decoder.new_cache(paths, horizon)
        chunks: list[tuple[KVCache, Chunk]] = [(cache, OwnChunk(paths, horizon, 0))]
        if prompt_length:
            chunks.insert(0, (cache, PromptChunk(prompt_length)))
        tokens = torch.cat((prompt.reshape(2, -1), own.reshape(2, -1)), dim=1)
        positions = torch.arange(prompt_length + horizon, device=self.device)
        positions = torch.cat((positions[:prompt_length], positions[prompt_length:].repeat(paths)))
        x = self._decoder.run(self.tokenizer.embed_tokens(tokens[0], tokens[1]), chunks, positions)
        bars: Tensor = self.tokenizer.head(x[prompt_length:])
        return bars.view(paths, horizon, -1)
