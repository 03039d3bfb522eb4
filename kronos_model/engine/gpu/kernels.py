"""Kernels for a decode step on a GPU, if the device can run them: fewer launches, and no padding is read."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from kronos_model.engine.decoding.draws import Draw, check_draw

log = logging.getLogger(__name__)

Read = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""As ``read_by_row``."""


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
        from kronos_model.engine.gpu import draw_kernel, read_kernel

        with torch.cuda.device(device):
            check_draw(draw_kernel.draw, device)
            check_read(read_kernel.read, device)
    except Exception:  # no Triton, no C compiler, a device that Triton cannot compile for
        log.warning("steps on %s take more operations, and read padding", device, exc_info=True)
        return None
    return Kernels(draw_kernel.draw, read_kernel.read)


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
