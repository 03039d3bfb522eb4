"""The model computed by the native kernels: a chunk of lookbacks in one call, a step in two."""

from collections.abc import Sequence
from typing import Any, Final, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kronos_model.engine.native import step
from kronos_model.engine.native.attention import MAX_GROUP_ROWS, scratch_floats
from kronos_model.engine.native.layout import CACHE, FILL, ROW, ROWS, TO_S1, TO_S2
from kronos_model.engine.native.pool import KernelPool
from kronos_model.engine.native.products import PANEL, ROW_SIZE
from kronos_model.engine.native.weights import NativeWeights
from kronos_model.engine.scheduling.path_table import Batch
from kronos_model.engine.transformer.kv_cache import ChunkSegment, KVCache, Segment
from kronos_model.engine.transformer.network import Choose, Network
from kronos_model.errors import KronosError
from kronos_model.layers import NORM_EPSILON, TransformerBlock
from kronos_model.model import Kronos

MAX_FILLED_ROWS: Final = 512
"""More rows are computed one part after the other."""


class NativeNetwork(Network):
    """Computes what ``TorchNetwork`` does, on the CPU.

    Each row has the same bits in any batch and for any number of threads, which is PyTorch's.
    """

    def __init__(
        self, model: Kronos, *, num_slots: int, capacity: int, max_positions: int, dtype: torch.dtype
    ) -> None:
        super().__init__(model, num_slots=num_slots, capacity=capacity, dtype=dtype)
        block = cast(TransformerBlock, model.transformer[0])
        widths = [cache.k.shape[2] * cache.k.shape[4] for cache in (self.blocks, self.dependency)]
        num_scores = 2 * (self.blocks.k.shape[3] + PANEL)  # of shared bars and of own ones
        if max(model.d_model, block.ffn.w1.out_features, *widths, num_scores) > ROW_SIZE:
            raise KronosError(f"the model or its context has rows of more than {ROW_SIZE} numbers")
        weights, kept = (step.DTYPES[str(kind).removeprefix("torch.")] for kind in (dtype, self.kept_as))
        self._weights = NativeWeights(
            model,
            self.embedding.table,
            head_dim=self.dependency.k.shape[-1],
            num_positions=max_positions,
            dtype=dtype,
        )
        self._max_rows = max_rows = max(MAX_FILLED_ROWS, num_slots)
        num_layers = len(model.transformer)
        outputs = [-(-count // PANEL) * PANEL for count in (self.s1_vocabulary, self.s2_vocabulary)]
        head_dim = max(self.blocks.k.shape[4], self.dependency.k.shape[4])
        self._pool = KernelPool(weights, kept, scratch_floats(head_dim))
        self._logits = np.empty((max_rows, max(outputs)), np.float32)
        self._rows, self._groups = np.zeros(max_rows, ROW), np.empty((max_rows, 2), np.int64)
        self._s1, self._counters = np.empty(max_rows, np.int64), np.empty(num_layers, np.int64)
        self._buffers: dict[str, NDArray[Any]] = {
            # Memory is taken where it is written.
            **{name: np.empty(max_rows * ROW_SIZE, np.float32) for name in ROWS},
            "logits": self._logits,
            "s1": self._s1,
            "rows": self._rows,
            "groups": self._groups,
            "counters": self._counters,
        }
        sizes = {
            "num_layers": num_layers,
            "d_model": model.d_model,
            "d_ff": block.ffn.w1.out_features,
            "s1_outputs": outputs[0],
            "s2_outputs": outputs[1],
            "epsilon": NORM_EPSILON,
            "blocks": _described(self.blocks),
            "dependency": _described(self.dependency),
        }
        addresses = {name: array.ctypes.data for name, array in self._buffers.items()}
        for name, value in (sizes | addresses | self._weights.addresses).items():
            self._pool.job[name] = value

    def fill(self, tokens: Tensor, calendar: Tensor, positions: Tensor, segments: Sequence[Segment]) -> None:
        rows = np.zeros(len(tokens), ROW)
        self._describe(rows, tokens, calendar, positions.numpy())
        first = 0
        for segment in cast("Sequence[ChunkSegment]", segments):
            for span, (slot, bar, _) in zip(segment.row_spans(first), segment.stored, strict=True):
                number = np.arange(span.num_rows)
                part = rows[span.first_row : span.first_row + span.num_rows]
                part["slot"], part["bar"] = slot, bar + number
                shared, *own = span.seen
                part["shared_slot"], part["shared_first"], part["shared_last"] = shared
                if own:
                    _, part["own_first"], _ = own[0]
                    part["own_last"] = part["own_first"] + number + 1
                else:
                    part["shared_last"] = part["bar"] + 1
            first += segment.num_tokens
        for first in range(0, len(rows), self._max_rows):
            self._run(FILL, rows[first : first + self._max_rows])

    def decode(self, batch: Batch, tokens: Tensor, calendar: Tensor, choose: Choose) -> Tensor:
        columns, slots, max_context = batch.table.columns, batch.slots, batch.table.max_context
        rows = self._rows[: len(slots)]
        position = columns["position"][slots]
        self._describe(rows, tokens, calendar, position)
        rows["slot"], rows["bar"] = slots, columns["bar"][slots]
        rows["own_first"] = 0
        rows["own_last"] = np.minimum(columns["seen"][slots], max_context)  # all, after the cache has rolled
        rows["shared_slot"] = batch.table.num_slots + columns["prompt"][slots]
        rows["shared_first"] = np.maximum(position + 1 - max_context, 0)
        rows["shared_last"] = columns["prompt_bars"][slots]
        num_threads = torch.get_num_threads()
        self._run(TO_S1, rows)
        torch.set_num_threads(1)  # OpenMP's threads spin after each operation, where ours have to run
        try:
            s1 = choose(0, self._logits_of(len(rows), self.s1_vocabulary, "s1_outputs"))
            self._s1[: len(rows)] = s1.numpy()
            self._counters[0] = 0
            self._pool.run(TO_S2, num_threads)
            s2 = choose(1, self._logits_of(len(rows), self.s2_vocabulary, "s2_outputs"))
        finally:
            torch.set_num_threads(num_threads)
        return torch.stack((s1, s2), dim=-1)

    def _describe(
        self, rows: NDArray[Any], tokens: Tensor, calendar: Tensor, position: NDArray[np.int64]
    ) -> None:
        inputs = self.embedding.rows(tokens, calendar).numpy()
        for column, name in enumerate(("s1", "s2", "clock", "date")):
            rows[name] = inputs[:, column]
        rows["position"] = position

    def _run(self, task: int, rows: NDArray[Any]) -> None:
        self._rows[: len(rows)] = rows
        groups = groups_of(rows)
        self._groups[: len(groups)] = groups
        self._pool.job["num_rows"], self._pool.job["num_groups"] = len(rows), len(groups)
        self._counters[:] = 0
        self._pool.run(task, torch.get_num_threads())

    def _logits_of(self, num_rows: int, vocabulary: int, num_outputs: str) -> Tensor:
        stride = int(self._pool.job[num_outputs])
        flat = self._logits.reshape(-1)[: num_rows * stride]
        return torch.from_numpy(flat.reshape(num_rows, stride)[:, :vocabulary])


def groups_of(rows: NDArray[Any]) -> NDArray[np.int64]:
    """The groups, [first, last), of neighbouring rows that see the same shared bars from the same one on.

    Rows without any are alone.
    """
    if len(rows) == 1:
        return np.array([[0, 1]])
    slot, first = rows["shared_slot"], rows["shared_first"]
    begins = np.ones(len(rows), dtype=bool)
    begins[1:] = (slot[1:] != slot[:-1]) | (first[1:] != first[:-1]) | (rows["shared_last"][1:] <= first[1:])
    numbers = np.arange(len(rows))
    in_group = numbers - np.maximum.accumulate(np.where(begins, numbers, 0))
    firsts = np.flatnonzero(in_group % MAX_GROUP_ROWS == 0)
    return np.stack((firsts, np.append(firsts[1:], len(rows))), axis=1)


def _described(cache: KVCache) -> NDArray[Any]:
    _, num_slots, num_heads, num_bars, head_dim = cache.k.shape
    described = np.zeros((), CACHE)
    values = cache.k.data_ptr(), cache.v.data_ptr(), num_slots, num_heads, num_bars, head_dim
    described[()] = values
    return described
