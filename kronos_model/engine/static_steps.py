"""Decode steps of fixed shapes, which CUDA records once and replays: a launch a step instead of hundreds.

Row r is slot r, whether a path is there or not; what a row must not read is masked, and a row without a path
writes where nobody reads. Shapes grow in powers of two, so that few are ever recorded. Where there is no CUDA
the same steps run unrecorded.
"""

import math
from collections import deque
from typing import Final

import torch
from torch import Tensor

from kronos_model.engine.attention import attend, merge
from kronos_model.engine.kv_cache import KVCache
from kronos_model.engine.network import Network
from kronos_model.engine.noise import counter_noise
from kronos_model.engine.reads import newest_position
from kronos_model.engine.sampling import RowParams, sample
from kronos_model.engine.sequence import Sequence
from kronos_model.engine.static_inputs import (
    BAR_BLOCK,
    ROW_COLUMNS,
    Shape,
    StepArrays,
    StepInputs,
    shape_for,
)
from kronos_model.engine.steps import SlotTokens

MAX_STEPS_AHEAD: Final = 2
"""Steps that may be under way on the device while the next is prepared."""


class StaticSegment:
    """The rows of a step of fixed shape; ``first`` … ``wrapped`` say which bars of its slot a row reads."""

    def __init__(self, shape: Shape, columns: dict[str, Tensor], inputs: StepInputs) -> None:
        self._shape, self._columns, self._inputs = shape, columns, inputs
        self._rows = torch.arange(shape.rows, device=inputs.rows.device)
        bars = torch.arange(shape.bars, device=inputs.rows.device)
        first, last, wrapped = (columns[name].unsqueeze(-1) for name in ("first", "last", "wrapped"))
        own = ((bars >= first) & (bars < last)) | (bars < wrapped)
        self._own_mask = _as_mask(own)
        if shape.prompts:
            _, first, last = inputs.prompts.unsqueeze(-1).unbind()
            self._prompt_mask = _as_mask((bars >= first) & (bars < last))

    @property
    def num_tokens(self) -> int:
        return self._shape.rows

    def store(self, cache: KVCache, layer: int, k: Tensor, v: Tensor) -> None:
        cache.k[layer, self._rows, :, self._columns["bar"]] = k.to(cache.k.dtype)
        cache.v[layer, self._rows, :, self._columns["bar"]] = v.to(cache.v.dtype)

    def attend(self, cache: KVCache, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.store(cache, layer, k, v)
        return self.read(cache, layer, q)

    def read(self, cache: KVCache, layer: int, q: Tensor) -> Tensor:
        q = q.to(cache.k.dtype)
        keys, values = (x[layer, :, :, : self._shape.bars] for x in (cache.k, cache.v))
        own = attend(q.unsqueeze(2), keys[: len(q)], values[: len(q)], self._own_mask)
        mixed, weight = own.out.squeeze(2), own.weight.squeeze(2)
        if not self._shape.prompts:
            return mixed
        slots = self._inputs.prompts[0]
        grouped = q[self._inputs.prompt_rows].transpose(1, 2)  # (G, H, S, head_dim)
        shared = attend(grouped, keys[slots], values[slots], self._prompt_mask)
        prompt, member = self._columns["prompt"], self._columns["member"]
        shared_weight = shared.weight.transpose(1, 2)[prompt.clamp(min=0), member]  # (R, H)
        shared_weight = shared_weight.masked_fill((prompt < 0).unsqueeze(-1), -math.inf)
        return merge(mixed, weight, shared.out.transpose(1, 2)[prompt.clamp(min=0), member], shared_weight)


def _as_mask(is_seen: Tensor) -> Tensor:
    """(N, bars) → (N, 1, 1, bars), added to scores."""
    return torch.zeros(is_seen.shape, device=is_seen.device).masked_fill(~is_seen, -math.inf)[:, None, None]


class StaticSteps:
    """As ``EagerSteps``; noise is computed where it is used."""

    NUM_SPARE_BARS: Final = 1
    """A slot's room for what rows without a path write."""

    def __init__(self, network: Network, own: SlotTokens, max_context: int) -> None:
        self._network, self._own, self._max_context = network, own, max_context
        self._num_slots = len(own.tokens)
        self._inputs: dict[Shape, StepInputs] = {}
        self._recorded: dict[Shape, torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle() if network.device.type == "cuda" else None
        self._under_way: deque[torch.cuda.Event] = deque()

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Record the shapes that single paths, and one series with many, will need."""
        for bars in range(BAR_BLOCK, self._max_context + BAR_BLOCK, BAR_BLOCK):
            for exponent in range(self._num_slots.bit_length()):
                num_rows = 1 << exponent
                for paths in ([], [num_rows]) if exponent else ([],):
                    shape = self._shape(num_rows, bars, paths)
                    self._fill((), shape)
                    self._run(shape)

    @torch.inference_mode()
    def decode(self, sequences: tuple[Sequence, ...]) -> None:
        shared = [one.num_paths for one in sequences if one.num_paths > 1]
        num_rows = 1 + max(max(sequence.slots) for sequence in sequences)
        num_bars = max(min(newest_position(one) + 1, self._max_context) for one in sequences)
        shape = self._shape(num_rows, num_bars, shared)
        self._fill(sequences, shape)
        self._run(shape)

    def restart(self, sequence: Sequence) -> None:
        """Nothing is kept of a sequence."""

    def release(self, sequence: Sequence) -> None:
        """Nothing is kept of a sequence."""

    def _shape(self, num_rows: int, num_bars: int, paths: list[int]) -> Shape:
        return shape_for(num_rows, num_bars, paths, max_rows=self._num_slots, max_bars=self._max_context)

    def _fill(self, sequences: tuple[Sequence, ...], shape: Shape) -> None:
        """Copy what this step needs to the device."""
        if shape not in self._inputs:
            self._inputs[shape] = StepInputs.blank(shape, self._network.device)
        self._inputs[shape].copy(StepArrays.of(sequences, shape, self._max_context))

    def _run(self, shape: Shape) -> None:
        if self._pool is None:
            self._step(shape)
            return
        if shape not in self._recorded:
            self._record(shape)
        self._recorded[shape].replay()
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self._under_way.append(event)
        if len(self._under_way) > MAX_STEPS_AHEAD:
            self._under_way.popleft().synchronize()

    def _record(self, shape: Shape) -> None:
        # Libraries set themselves up on first use, which must not be recorded. To run a step again changes
        # nothing.
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._step(shape)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # Another model may be loading on another thread, which is none of this recording's business.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            self._step(shape)
        self._recorded[shape] = graph

    def _step(self, shape: Shape) -> None:
        inputs = self._inputs[shape]
        columns = dict(zip(ROW_COLUMNS, inputs.rows, strict=True))
        rows = torch.arange(shape.rows, device=self._network.device)
        newest = columns["newest"]
        temperature, top_p = inputs.sampling.unsqueeze(-1)
        params = RowParams(temperature, columns["top_k"].unsqueeze(-1), top_p, filters=True)

        def choose(draw: int, logits: Tensor) -> Tensor:
            noise = counter_noise(columns["seed"], columns["path"], newest, draw, logits.shape[-1])
            return sample(logits, params, noise)

        self._own.tokens[rows, newest + 1] = self._network.next_tokens(
            self._own.tokens[rows, newest],
            self._own.calendar[columns["lead"], newest],
            columns["position"],
            StaticSegment(shape, columns, inputs),
            choose,
        )
