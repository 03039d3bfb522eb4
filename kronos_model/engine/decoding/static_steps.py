"""Decode steps of fixed shapes, which CUDA records once and replays: one launch a step, not hundreds.

Row r is slot r, with or without a path. What a row must not read is masked, and a row without a path writes
where nothing reads. Without CUDA the same steps run unrecorded. If the device can run them, kernels draw the
tokens and read the cache: fewer launches, and no padding is read.
"""

import logging
from dataclasses import dataclass
from types import ModuleType
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional as F

from kronos_model.engine.decoding.graphs import GraphCache
from kronos_model.engine.decoding.sampling import Draw, RowParams, check_draw, draw
from kronos_model.engine.decoding.static_inputs import (
    KernelSegment,
    Read,
    Shape,
    StaticSegment,
    StepInputs,
    shape_for,
    usual_shapes,
)
from kronos_model.engine.decoding.steps import SlotTokens, Steps
from kronos_model.engine.scheduling.path_table import Batch, PathTable
from kronos_model.engine.sequence import Sequence
from kronos_model.engine.transformer.network import TorchNetwork

log = logging.getLogger(__name__)


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
            shapes = [Shape(rows) for rows in sorted({one.rows for one in shapes})]
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
