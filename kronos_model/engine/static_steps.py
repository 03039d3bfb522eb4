"""Decode steps of fixed shapes, which CUDA records once and replays: one launch a step, not hundreds.

Row r is slot r, with or without a path. What a row must not read is masked, and a row without a path writes
where nothing reads. Shapes grow in powers of two. Without CUDA the same steps run unrecorded.
"""

import logging
import math
import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import torch
from torch import Tensor

from kronos_model.engine.attention import attend, merge
from kronos_model.engine.draws import draw_on
from kronos_model.engine.kv_cache import KVCache
from kronos_model.engine.network import Network
from kronos_model.engine.sampling import RowParams
from kronos_model.engine.sequence import Sequence
from kronos_model.engine.static_inputs import (
    RowTable,
    Shape,
    StepInputs,
    shape_for,
    usual_shapes,
)
from kronos_model.engine.steps import SlotTokens

log = logging.getLogger(__name__)

USES_UNTIL_RECORDED: Final = 16
"""A shape is recorded after this many uses: recording costs many steps, and most shapes are rare."""

_recording = threading.Lock()  # PyTorch records one graph at a time in a process


class StaticSegment:
    """The rows of a step of fixed shape."""

    def __init__(
        self,
        shape: Shape,
        columns: dict[str, Tensor],
        inputs: StepInputs,
        num_slots: int,
        dtype: torch.dtype,
    ) -> None:
        self._shape, self._columns, self._inputs, self._num_slots = shape, columns, inputs, num_slots
        device = inputs.changing.device
        self._rows = torch.arange(shape.rows, device=device)
        bars = torch.arange(shape.bars, device=device)
        self._own_mask = _as_mask(bars < columns["seen"].unsqueeze(-1), dtype)
        if shape.prompts:
            bars = torch.arange(shape.prompt_bars, device=device)
            first, last = inputs.prompt_spans.unsqueeze(-1).unbind()
            # An empty prompt shows its first bar, so that nothing becomes NaN; its rows give it no weight.
            is_read = (bars >= first) & (bars < last) | (bars == 0) & (first >= last)
            self._prompt_mask = _as_mask(is_read, dtype)
            is_seen = torch.cat(((first < last).flatten(), torch.zeros(1, dtype=torch.bool, device=device)))
            self._has_prompt = is_seen[columns["prompt"]]  # −1 is the last

    @property
    def num_tokens(self) -> int:
        return self._shape.rows

    def store(self, cache: KVCache, layer: int, k: Tensor, v: Tensor) -> None:
        cache.k[layer, self._rows, :, self._columns["bar"]] = k
        cache.v[layer, self._rows, :, self._columns["bar"]] = v

    def attend(self, cache: KVCache, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.store(cache, layer, k, v)
        return self.read(cache, layer, q)

    def read(self, cache: KVCache, layer: int, q: Tensor) -> Tensor:
        shape = self._shape
        keys, values = (x[layer, : shape.rows, :, : shape.bars] for x in (cache.k, cache.v))
        own = attend(q.unsqueeze(2), keys, values, self._own_mask)
        mixed, weight = own.out.squeeze(2), own.weight.squeeze(2)
        if not shape.prompts:
            return mixed
        prompts = slice(self._num_slots, self._num_slots + shape.prompts)
        keys, values = (x[layer, prompts, :, : shape.prompt_bars] for x in (cache.k, cache.v))
        grouped = q[self._inputs.prompt_rows].transpose(1, 2)  # (G, H, S, head_dim)
        shared = attend(grouped, keys, values, self._prompt_mask)
        prompt, member = self._columns["prompt"].clamp(min=0), self._columns["member"]
        shared_weight = shared.weight.transpose(1, 2)[prompt, member]  # (R, H)
        shared_weight = shared_weight.masked_fill(~self._has_prompt.unsqueeze(-1), -math.inf)
        return merge(mixed, weight, shared.out.transpose(1, 2)[prompt, member], shared_weight)


def _as_mask(is_seen: Tensor, dtype: torch.dtype) -> Tensor:
    """(N, bars) → (N, 1, 1, bars), added to scores."""
    zeros = torch.zeros(is_seen.shape, dtype=dtype, device=is_seen.device)
    return zeros.masked_fill(~is_seen, -math.inf)[:, None, None]


class StaticSteps:
    """The same steps as ``EagerSteps``, in fixed shapes. Noise is computed inside the step."""

    NUM_SPARE_BARS: Final = 1
    """Extra room in a slot for what rows without a path write."""

    def __init__(self, network: Network, own: SlotTokens) -> None:
        self._network, self._own = network, own
        self._draw = draw_on(network.device)
        self._inputs: dict[Shape, StepInputs] = {}
        self._table: RowTable | None = None
        self._num_uses: dict[Shape, int] = {}
        self._recorded: dict[Shape, torch.cuda.CUDAGraph | None] = {}  # None: could not be recorded
        self._pool = torch.cuda.graph_pool_handle() if network.device.type == "cuda" else None

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Record the shapes of single paths and of one series with many paths."""
        with self._on_device():
            for shape in usual_shapes(self._own.num_slots, self._own.max_context):
                self._fill((), shape)
                self._num_uses[shape] = USES_UNTIL_RECORDED
                self._run(shape)

    @torch.inference_mode()
    def decode(self, sequences: tuple[Sequence, ...]) -> None:
        with self._on_device():
            shape = shape_for(sequences, self._own.num_slots, self._own.max_context)
            self._fill(sequences, shape)
            self._run(shape)

    def suspend(self, sequence: Sequence) -> Tensor | None:
        return None  # its noise depends on seed, path and step alone

    def resume(self, sequence: Sequence, state: Tensor | None) -> None:
        self._table = None

    def release(self, sequence: Sequence) -> None:
        self._table = None

    def _on_device(self) -> AbstractContextManager[object]:
        """Make the network's device current, because streams and graphs belong to the current device."""
        return nullcontext() if self._pool is None else torch.cuda.device(self._network.device)

    def _fill(self, sequences: tuple[Sequence, ...], shape: Shape) -> None:
        """Copy the inputs of this step to the device."""
        table = self._table
        if table is not None and table.sequences == sequences and table.shape == shape:
            table.refresh()
            self._inputs[shape].copy_changing(table)
            return
        self._table = table = RowTable(sequences, shape, self._own.num_slots, self._own.max_context)
        if shape in self._inputs:
            self._inputs[shape].copy_all(table)
        else:
            self._inputs[shape] = StepInputs.of(table, self._network.device)

    def _run(self, shape: Shape) -> None:
        self._num_uses[shape] = self._num_uses.get(shape, 0) + 1
        is_usual = self._num_uses[shape] > USES_UNTIL_RECORDED
        if self._pool is not None and is_usual and shape not in self._recorded:
            self._recorded[shape] = self._record(shape)
        graph = self._recorded.get(shape)
        if graph is None:
            self._step(shape)
        else:
            graph.replay()

    def _record(self, shape: Shape) -> torch.cuda.CUDAGraph | None:
        """The step as a graph; None if that fails: the step then runs unrecorded."""
        graph = torch.cuda.CUDAGraph()
        # The outer stream becomes current again, also if recording fails half-way.
        with _recording, torch.cuda.stream(torch.cuda.current_stream()):
            try:
                side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    for _ in range(2):  # libraries initialise on first use; repeating a step changes nothing
                        self._step(shape)
                torch.cuda.current_stream().wait_stream(side)
                with torch.cuda.graph(graph, pool=self._pool, stream=side, capture_error_mode="thread_local"):
                    self._step(shape)
            except RuntimeError:
                log.warning("a step of %s was not recorded by CUDA and runs unrecorded", shape, exc_info=True)
                return None
        return graph

    def _step(self, shape: Shape) -> None:
        inputs = self._inputs[shape]
        columns = inputs.columns()
        rows = torch.arange(shape.rows, device=self._network.device)
        newest = columns["newest"]
        temperature, top_p = inputs.sampling.unsqueeze(-1)
        params = RowParams(temperature, columns["top_k"].unsqueeze(-1), top_p, filters=True)

        def choose(draw: int, logits: Tensor) -> Tensor:
            return self._draw(logits, params, columns["seed"], columns["path"], newest, draw)

        self._own.tokens[rows, newest + 1] = self._network.next_tokens(
            self._own.tokens[rows, newest],
            self._own.calendar[columns["lead"], newest],
            columns["position"],
            StaticSegment(shape, columns, inputs, self._own.num_slots, self._network.kept_as),
            choose,
        )
