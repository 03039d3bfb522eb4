"""The rows of a step of fixed shape: row r reads slot r, and the shared prompt that it has."""

import math

import torch
from torch import Tensor

from kronos_model.engine.gpu.kernels import Read
from kronos_model.engine.gpu.static_inputs import Shape, StepInputs
from kronos_model.engine.transformer.attention import attend, mask_of, merge
from kronos_model.engine.transformer.kv_cache import DecodeRows, KVCache


class KernelSegment(DecodeRows):
    """A kernel reads what each row sees, and no more."""

    def __init__(self, columns: dict[str, Tensor], num_slots: int, max_context: int, read: Read) -> None:
        super().__init__(torch.arange(len(columns["bar"]), device=columns["bar"].device), columns["bar"])
        self._read = read
        self._spans = (
            columns["seen"].clamp(max=max_context),
            columns["prompt"] + num_slots,  # of a row without a prompt, no bars are read
            (columns["position"] + (1 - max_context)).clamp(min=0),
            columns["prompt_bars"],
        )

    def read(self, cache: KVCache, layer: int, q: Tensor) -> Tensor:
        return self._read(q, cache.k[layer], cache.v[layer], *self._spans)


class StaticSegment(DecodeRows):
    """Rows read as many bars as the shape says; those that they do not see are masked."""

    def __init__(self, shape: Shape, inputs: StepInputs, dtype: torch.dtype) -> None:
        columns = inputs.columns(shape)
        super().__init__(torch.arange(len(columns["bar"]), device=columns["bar"].device), columns["bar"])
        self._shape = shape
        device = columns["seen"].device
        bars = torch.arange(shape.bars, device=device)
        self._own_mask = mask_of(bars >= columns["seen"].unsqueeze(-1), dtype)[:, None, None]
        if shape.blocks:
            bars = torch.arange(shape.prompt_bars, device=device)
            first, last, slots = inputs.prompts(shape).clamp(min=0).unsqueeze(-1).unbind()
            self._prompt_slots, self._block_rows = slots.squeeze(-1), inputs.block_rows(shape)
            # An empty prompt shows its first bar, so that nothing becomes NaN; its rows give it no weight.
            is_read = (bars >= first) & (bars < last) | (bars == 0) & (first >= last)
            self._prompt_mask = mask_of(~is_read, dtype)[:, None, None]
            is_seen = torch.cat(((first < last).flatten(), torch.zeros(1, dtype=torch.bool, device=device)))
            self._has_no_prompt = ~is_seen[columns["block"]].unsqueeze(-1)  # −1 is the last
            self._block, self._member = columns["block"].clamp(min=0), columns["member"]

    def read(self, cache: KVCache, layer: int, q: Tensor) -> Tensor:
        shape = self._shape
        keys, values = (x[layer, : shape.rows, :, : shape.bars] for x in (cache.k, cache.v))
        own = attend(q.unsqueeze(2), keys, values, self._own_mask)
        mixed, weight = own.out.squeeze(2), own.weight.squeeze(2)
        if not shape.blocks:
            return mixed
        keys, values = (x[layer][self._prompt_slots, :, : shape.prompt_bars] for x in (cache.k, cache.v))
        grouped = q[self._block_rows].transpose(1, 2)  # (G, H, S, head_dim)
        shared = attend(grouped, keys, values, self._prompt_mask)
        shared_weight = shared.weight.transpose(1, 2)[self._block, self._member]  # (R, H)
        shared_weight = shared_weight.masked_fill(self._has_no_prompt, -math.inf)
        return merge(mixed, weight, shared.out.transpose(1, 2)[self._block, self._member], shared_weight)
