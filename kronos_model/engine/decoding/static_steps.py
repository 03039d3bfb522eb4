"""Decode steps of fixed shapes, which CUDA records once and replays: one launch a step, not hundreds.

Row r is slot r, with or without a path. What a row must not read is masked, and a row without a path writes
where nothing reads. Without CUDA the same steps run unrecorded. If the device can run them, kernels draw the
tokens and read the cache: fewer launches, and no padding is read.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from kronos_model.engine.decoding.graphs import GraphCache
from kronos_model.engine.decoding.sampling import Draw, RowParams, check_draw, draw
from kronos_model.engine.decoding.steps import SlotTokens, Steps
from kronos_model.engine.scheduling.path_table import CHANGING_COLUMNS, COLUMNS, Batch, PathTable
from kronos_model.engine.sequence import Sequence
from kronos_model.engine.transformer.attention import attend, mask_of, merge
from kronos_model.engine.transformer.kv_cache import DecodeRows, KVCache
from kronos_model.engine.transformer.network import TorchNetwork

log = logging.getLogger(__name__)

BAR_BLOCK: Final = 128
"""Rows read at least so many bars, or twice as many, and so on."""
MIN_ROWS: Final = 4
MAX_ROWS_QUADRUPLED: Final = 64
"""Numbers of rows grow fourfold up to this, then twofold: a few rows more cost less than a launch."""
USUAL_PATHS: Final = 30
"""Of a series, unless it asks for another number."""

ROWS_PER_READ: Final = 32
"""To read a prompt takes about as long as to compute the scores of so many rows."""

Read = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""As ``read_by_row``."""


class Shape(NamedTuple):
    """The sizes that a step is recorded for."""

    rows: int
    bars: int = 0  # read by each row, of its slot; 0 if a kernel reads what each row sees
    blocks: int = 0  # of rows that read a prompt together
    prompt_bars: int = 0  # read by each block
    rows_per_block: int = 0


def shape_for(batch: Batch) -> Shape:
    """The smallest shape that holds a step with these sequences.

    Each size is one of a few, and none exceeds what exists.
    """
    num_slots, max_context = batch.table.num_slots, batch.table.max_context
    columns = batch.table.columns
    rows = min(_row_size(1 + int(batch.slots.max())), num_slots)
    bars = min(_bar_size(int(columns["seen"][batch.slots].max())), max_context)
    prompts = columns["prompt"][batch.slots]
    num_rows = np.bincount(prompts[prompts >= 0])  # by prompt
    sizes = {min(_row_size(count), num_slots) for count in {*num_rows.tolist()} - {0}}
    if not sizes:
        return Shape(rows, bars)
    blocks, rows_per_block = min(
        ((min(_block_size(int((-(-num_rows // size)).sum())), num_slots), size) for size in sizes),
        key=lambda sizes: (sizes[0] * (ROWS_PER_READ + sizes[1]), sizes[0]),
    )
    prompt_bars = min(_bar_size(int(columns["prompt_bars"][batch.slots].max())), max_context)
    return Shape(rows, bars, blocks, prompt_bars, rows_per_block)


def usual_shapes(num_slots: int, max_context: int) -> list[Shape]:
    """The shapes of any number of single paths, of one series with all the paths, and of usual series."""
    counts = sorted({min(_row_size(count), num_slots) for count in range(1, num_slots + 1)})
    bars = sorted({min(_bar_size(count), max_context) for count in range(1, max_context + 1)})
    alone = [Shape(rows, most) for rows in counts for most in bars]
    shared = [Shape(rows, bars[0], 1, most, rows) for rows in counts for most in bars]
    rows_per_prompt = min(_row_size(USUAL_PATHS), num_slots)
    several = [
        Shape(rows, bars[0], _row_size(rows // USUAL_PATHS), bars[-1], rows_per_prompt)
        for rows in counts
        if rows >= 2 * USUAL_PATHS
    ]
    return alone + shared + several


def _bar_size(count: int) -> int:
    size = BAR_BLOCK
    while size < count:
        size *= 2
    return size


def _block_size(count: int) -> int:
    return _row_size(count) if count > 1 else 1


def _row_size(count: int) -> int:
    size = MIN_ROWS
    while size < count:
        size *= 4 if size < MAX_ROWS_QUADRUPLED else 2
    return size


class StepInputs:
    """The columns of a batch on the device, in tensors that stay where they are, for steps of any shape.

    R rows; G blocks of up to S rows that read the same prompt.
    """

    def __init__(self, num_slots: int, max_context: int, device: torch.device) -> None:
        self._num_slots, self._max_context = num_slots, max_context
        self._values = torch.zeros(len(COLUMNS) + 2, num_slots, dtype=torch.int64, device=device)
        self._sampling = torch.ones(2, num_slots, device=device)
        self._prompts = torch.zeros(3, num_slots, dtype=torch.int64, device=device)
        self._block_rows = torch.zeros(num_slots, num_slots, dtype=torch.int64, device=device)

    def columns(self, shape: Shape) -> dict[str, Tensor]:
        """Each column (R,) by its name. ``block``: −1 for none; ``member``: which of its rows this is."""
        names = (*COLUMNS, "block", "member")
        return dict(zip(names, self._values[:, : shape.rows], strict=True))

    def sampling(self, shape: Shape) -> Tensor:
        """(2, R), temperature and top_p."""
        return self._sampling[:, : shape.rows]

    def prompts(self, shape: Shape) -> Tensor:
        """(3, G), first and last bar that is seen, and the slot; the first may be negative."""
        return self._prompts[:, : shape.blocks]

    def block_rows(self, shape: Shape) -> Tensor:
        """(G, S)."""
        return self._block_rows[: shape.blocks, : shape.rows_per_block]

    def fill(self, batch: Batch, shape: Shape) -> None:
        """Copy where the paths of a batch are now."""
        table, slots = batch.table, batch.slots
        values = np.zeros(self._values.shape, dtype=np.int64)
        values[:-2] = table.unused
        values[:-2, slots] = table.values[:, slots]
        values[-2] = -1
        columns = dict(zip(COLUMNS, values[:-2], strict=True))
        if shape.blocks:
            # Rows of the same prompt one after the other, cut into blocks.
            sharing = slots[columns["prompt"][slots] >= 0]
            sharing = sharing[np.argsort(columns["prompt"][sharing], kind="stable")]
            prompts = columns["prompt"][sharing]
            members = (np.arange(len(prompts)) - np.searchsorted(prompts, prompts)) % shape.rows_per_block
            blocks = np.cumsum(members == 0) - 1
            values[-2:, sharing] = blocks, members
            rows = np.zeros((shape.blocks, shape.rows_per_block), dtype=np.int64)
            rows[blocks, members] = sharing
            _copy(rows, self.block_rows(shape))
            by_block = np.zeros((3, shape.blocks), dtype=np.int64)
            by_block[0, blocks] = columns["position"][sharing] + 1 - table.max_context
            by_block[1, blocks] = columns["prompt_bars"][sharing]
            by_block[2, blocks] = self._num_slots + prompts
            _copy(by_block, self.prompts(shape))
        _copy(values, self._values)
        _copy(table.sampling, self._sampling)

    def advance(self, shape: Shape) -> None:
        """Go on by a bar, as ``PathTable.advance``."""
        columns = self.columns(shape)
        self._values[: len(CHANGING_COLUMNS), : shape.rows] += columns["is_used"]
        columns["bar"].remainder_(columns["wraps_at"])
        if shape.blocks:
            self.prompts(shape)[0] += 1


def _copy(array: NDArray[np.generic], to: Tensor) -> None:
    """Without waiting for the device: PyTorch keeps pinned memory until it is copied."""
    source = torch.from_numpy(array)
    to.copy_(source.pin_memory() if to.is_cuda else source, non_blocking=True)


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


class StaticSteps(Steps):
    """The same steps as ``EagerSteps``, in fixed shapes. Noise is computed inside the step.

    Args:
        cuda: records and replays graphs: ``torch.cuda``, or a fake in tests. None on other devices.
    """

    NUM_SPARE_BARS: Final = 1
    """Extra room in a slot for what rows without a path write."""

    def __init__(self, network: TorchNetwork, own: SlotTokens, cuda: ModuleType | None = None) -> None:
        self._network, self._own = network, own
        self._kernels = kernels_on(network.device)
        self._inputs = StepInputs(own.num_slots, own.max_context, network.device)
        self._filled: tuple[Batch, int] | None = None  # what the inputs hold: a batch, and its newest bar
        if cuda is None and network.device.type == "cuda":
            cuda = torch.cuda
        self._graphs = GraphCache(self._run, network.device, cuda=cuda)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Run the shapes of single paths and of one series with many paths, and have them recorded."""
        shapes = usual_shapes(self._own.num_slots, self._own.max_context)
        if self._kernels is not None:
            shapes = [Shape(rows) for rows in sorted({shape.rows for shape in shapes})]
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
            if self._kernels is not None:
                shape = Shape(shape.rows)
            if self._filled != (batch, newest):
                self._inputs.fill(batch, shape)
            self._filled = None  # if the step fails
            self._graphs.run(shape)
            self._filled = batch, newest + 1

    def release(self, sequence: Sequence) -> None:
        self._filled = None

    def _fill_with_nothing(self, shape: Shape) -> None:
        """Fill in a step without paths, which can be repeated without effect."""
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
        params = RowParams(temperature, columns["top_k"].unsqueeze(-1), top_p)

        segment: StaticSegment | KernelSegment
        if self._kernels is None:
            segment = StaticSegment(shape, inputs, self._network.kept_as)
        else:
            segment = KernelSegment(columns, self._own.num_slots, self._own.max_context, self._kernels.read)
        draw_row = draw if self._kernels is None else self._kernels.draw

        def choose(number: int, logits: Tensor) -> Tensor:
            return draw_row(logits, params, columns["seed"], columns["path"], newest, number)

        self._own.tokens[rows, newest + 1] = self._network.next_tokens(
            self._own.tokens[rows, newest],
            self._own.calendar[columns["lead"], newest],
            columns["position"],
            segment,
            choose,
        )


@dataclass(frozen=True)
class Kernels:
    """What a step computes by a kernel each."""

    draw: Draw
    read: Read


def kernels_on(device: torch.device) -> Kernels | None:
    """The kernels, if they run on this device and compute there what PyTorch's operations do."""
    if device.type != "cuda":
        return None
    try:
        from kronos_model.engine.decoding import triton_kernels

        with torch.cuda.device(device):
            check_draw(triton_kernels.draw, device)
            check_read(triton_kernels.read, device)
    except Exception:  # no Triton, no C compiler, a device that Triton cannot compile for
        log.warning("steps on %s take more operations, and read padding", device, exc_info=True)
        return None
    return Kernels(triton_kernels.draw, triton_kernels.read)


def read_by_row(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor, prompt_slot: Tensor, first: Tensor, last: Tensor
) -> Tensor:
    """Attention of each row of q (R, H, hd) over the keys and values (slots, H, capacity, hd) of one layer.

    Row r sees the first ``seen`` bars of slot r, and the bars [``first``, ``last``) of slot ``prompt_slot``;
    all four are (R,) int64. What a kernel is compared with: a loop over the rows.
    """
    spans = torch.stack((seen, prompt_slot, first, last), dim=-1).tolist()
    outs = []
    for row, (own, slot, begin, end) in enumerate(spans):
        keys, values = (torch.cat((x[row, :, :own], x[slot, :, begin:end]), dim=1) for x in (k, v))
        outs.append(F.scaled_dot_product_attention(q[row].unsqueeze(1), keys, values).squeeze(1))
    return torch.stack(outs)


def check_read(kernel: Read, device: torch.device) -> None:
    """Raise ``RuntimeError`` unless a kernel computes what ``read_by_row`` computes on the CPU."""
    generator = torch.Generator().manual_seed(0)
    spans = ([1, 16, 65, 128, 90], [0, 6, 7, 6, 0], [0, 0, 3, 100, 0], [0, 100, 120, 101, 0])
    seen, prompt_slot, first, last = (torch.tensor(column) for column in spans)
    for dtype, head_dim in ((torch.float32, 24), (torch.bfloat16, 64)):
        q = torch.randn(5, 3, 2, head_dim, generator=generator).to(dtype)[:, 1]
        k, v = torch.randn(2, 8, 2, 130, head_dim, generator=generator).to(dtype)
        expected = read_by_row(q.float(), k.float(), v.float(), seen, prompt_slot, first, last)
        inputs = [x.to(device) for x in (q, k, v, seen, prompt_slot, first, last)]
        out = kernel(*inputs)
        if not torch.allclose(out.cpu().float(), expected, rtol=torch.finfo(dtype).eps, atol=1e-5):
            raise RuntimeError("it reads something else")
