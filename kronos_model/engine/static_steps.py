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
from kronos_model.engine.path_table import Batch, PathTable
from kronos_model.engine.sampling import RowParams, sample
from kronos_model.engine.sequence import Sequence
from kronos_model.engine.static_inputs import Shape, StepInputs, shape_for, usual_shapes
from kronos_model.engine.steps import SlotTokens


class StaticSegment:
    """The rows of a step of fixed shape."""

    def __init__(self, shape: Shape, inputs: StepInputs) -> None:
        self._shape = shape
        self._columns = columns = inputs.columns(shape)
        device = columns["seen"].device
        self._rows = torch.arange(shape.rows, device=device)
        bars = torch.arange(shape.bars, device=device)
        self._own_mask = _as_mask(bars < columns["seen"].unsqueeze(-1))
        if shape.blocks:
            bars = torch.arange(shape.prompt_bars, device=device)
            first, last, slots = inputs.prompts(shape).clamp(min=0).unsqueeze(-1).unbind()
            self._prompt_slots, self._block_rows = slots.squeeze(-1), inputs.block_rows(shape)
            # An empty prompt shows its first bar, so that nothing becomes NaN; its rows give it no weight.
            self._prompt_mask = _as_mask((bars >= first) & (bars < last) | (bars == 0) & (first >= last))
            is_seen = torch.cat(((first < last).flatten(), torch.zeros(1, dtype=torch.bool, device=device)))
            self._has_prompt = is_seen[columns["block"]]  # −1 is the last

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
        if not shape.blocks:
            return mixed
        keys, values = (x[layer][self._prompt_slots, :, : shape.prompt_bars] for x in (cache.k, cache.v))
        grouped = q[self._block_rows].transpose(1, 2)  # (G, H, S, head_dim)
        shared = attend(grouped, keys, values, self._prompt_mask)
        block, member = self._columns["block"].clamp(min=0), self._columns["member"]
        shared_weight = shared.weight.transpose(1, 2)[block, member]  # (R, H)
        shared_weight = shared_weight.masked_fill(~self._has_prompt.unsqueeze(-1), -math.inf)
        return merge(mixed, weight, shared.out.transpose(1, 2)[block, member], shared_weight)


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
        self._inputs = StepInputs(own.num_slots, own.max_context, network.device)
        self._filled: tuple[Batch, int] | None = None  # what the inputs hold: a batch, and its newest bar
        if cuda is None and network.device.type == "cuda":
            cuda = torch.cuda
        self._graphs = GraphCache(self._run, network.device, cuda=cuda)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Run the shapes of single paths and of one series with many paths, and have them recorded."""
        shapes = usual_shapes(self._own.num_slots, self._own.max_context)
        with self._graphs.on_device():
            for shape in shapes:
                self._fill_with_nothing(shape)
                self._run(shape)
        self._graphs.request(shapes)

    @torch.inference_mode()
    def prepare(self) -> bool:
        shape = self._graphs.next_due()
        if shape is None:
            return False
        with self._graphs.on_device():
            self._fill_with_nothing(shape)
            self._graphs.record_next()
        return True

    @torch.inference_mode()
    def decode(self, batch: Batch) -> None:
        newest = int(batch.table.columns["newest"][batch.slots[0]])
        with self._graphs.on_device():
            shape = shape_for(batch)
            if self._filled != (batch, newest):
                self._inputs.fill(batch, shape)
            self._filled = None  # if the step fails
            self._graphs.run(shape)
            self._filled = batch, newest + 1

    def suspend(self, sequence: Sequence) -> Tensor | None:
        return None  # its noise depends on seed, path and step alone

    def resume(self, sequence: Sequence, state: Tensor | None) -> None:
        """Nothing to do."""

    def release(self, sequence: Sequence) -> None:
        """Nothing to do."""

    def _fill_with_nothing(self, shape: Shape) -> None:
        """Make a step one without paths, which can be repeated without effect."""
        self._filled = None
        nothing = PathTable(self._own.num_slots, self._own.max_context).batch_of(())
        self._inputs.fill(nothing, shape)

    def _run(self, shape: Shape) -> None:
        self._step(shape)
        self._inputs.advance(shape)

    def _step(self, shape: Shape) -> None:
        inputs = self._inputs
        columns = inputs.columns(shape)
        rows = torch.arange(shape.rows, device=self._network.device)
        newest = columns["newest"]
        temperature, top_p = inputs.sampling(shape).unsqueeze(-1)
        params = RowParams(temperature, columns["top_k"].unsqueeze(-1), top_p, filters=True)

        def choose(draw: int, logits: Tensor) -> Tensor:
            noise = counter_noise(columns["seed"], columns["path"], newest, draw, logits.shape[-1])
            return sample(logits, params, noise)

        self._own.tokens[rows, newest + 1] = self._network.next_tokens(
            self._own.tokens[rows, newest],
            self._own.calendar[columns["lead"], newest],
            columns["position"],
            StaticSegment(shape, inputs),
            choose,
        )
