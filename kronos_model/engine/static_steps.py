"""Decode steps of fixed shapes, which CUDA records once and replays: one launch a step, not hundreds.

Row r is slot r, with or without a path. What a row must not read is masked, and a row without a path writes
where nothing reads. Without CUDA the same steps run unrecorded.
"""

import math
from types import ModuleType
from typing import Final

import torch
from torch import Tensor

from kronos_model.engine.attention import attend, merge
from kronos_model.engine.graphs import GraphCache
from kronos_model.engine.kv_cache import KVCache
from kronos_model.engine.network import Network
from kronos_model.engine.noise import counter_noise
from kronos_model.engine.sampling import RowParams, sample
from kronos_model.engine.sequence import Sequence
from kronos_model.engine.static_inputs import (
    RowTable,
    Shape,
    StepInputs,
    shape_for,
    usual_shapes,
)
from kronos_model.engine.steps import SlotTokens


class StaticSegment:
    """The rows of a step of fixed shape."""

    def __init__(self, shape: Shape, columns: dict[str, Tensor], inputs: StepInputs, num_slots: int) -> None:
        self._shape, self._columns, self._inputs, self._num_slots = shape, columns, inputs, num_slots
        device = inputs.changing.device
        self._rows = torch.arange(shape.rows, device=device)
        bars = torch.arange(shape.bars, device=device)
        self._own_mask = _as_mask(bars < columns["seen"].unsqueeze(-1))
        if shape.prompts:
            bars = torch.arange(shape.prompt_bars, device=device)
            first, last = inputs.prompt_spans.unsqueeze(-1).unbind()
            # An empty prompt shows its first bar, so that nothing becomes NaN; its rows give it no weight.
            self._prompt_mask = _as_mask((bars >= first) & (bars < last) | (bars == 0) & (first >= last))
            is_seen = torch.cat(((first < last).flatten(), torch.zeros(1, dtype=torch.bool, device=device)))
            self._has_prompt = is_seen[columns["prompt"]]  # −1 is the last

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
        q, shape = q.to(cache.k.dtype), self._shape
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


def _as_mask(is_seen: Tensor) -> Tensor:
    """(N, bars) → (N, 1, 1, bars), added to scores."""
    return torch.zeros(is_seen.shape, device=is_seen.device).masked_fill(~is_seen, -math.inf)[:, None, None]


class StaticSteps:
    """The same steps as ``EagerSteps``, in fixed shapes. Noise is computed inside the step.

    Args:
        cuda: records and replays graphs: ``torch.cuda``, or a fake in tests. None on other devices.
    """

    NUM_SPARE_BARS: Final = 1
    """Extra room in a slot for what rows without a path write."""

    def __init__(self, network: Network, own: SlotTokens, cuda: ModuleType | None = None) -> None:
        self._network, self._own = network, own
        self._inputs: dict[Shape, StepInputs] = {}
        self._table: RowTable | None = None
        if cuda is None and network.device.type == "cuda":
            cuda = torch.cuda
        self._graphs = GraphCache(self._step, network.device, cuda=cuda)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Run the shapes of single paths and of one series with many paths, and have them recorded."""
        shapes = usual_shapes(self._own.num_slots, self._own.max_context)
        with self._graphs.on_device():
            for shape in shapes:
                self._fill((), shape)
                self._step(shape)
        self._graphs.request(shapes)

    @torch.inference_mode()
    def prepare(self) -> bool:
        shape = self._graphs.next_due()
        if shape is None:
            return False
        with self._graphs.on_device():
            self._fill((), shape)
            self._graphs.record_next()
        return True

    @torch.inference_mode()
    def decode(self, sequences: tuple[Sequence, ...]) -> None:
        with self._graphs.on_device():
            shape = shape_for(sequences, self._own.num_slots, self._own.max_context)
            self._fill(sequences, shape)
            self._graphs.run(shape)

    def suspend(self, sequence: Sequence) -> Tensor | None:
        return None  # its noise depends on seed, path and step alone

    def resume(self, sequence: Sequence, state: Tensor | None) -> None:
        self._table = None

    def release(self, sequence: Sequence) -> None:
        self._table = None

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

    def _step(self, shape: Shape) -> None:
        inputs = self._inputs[shape]
        columns = inputs.columns()
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
            StaticSegment(shape, columns, inputs, self._own.num_slots),
            choose,
        )
