"""How fast are the operations of engine and training, compared with their alternatives?

Kronos-small's sizes on the CPU; microseconds per call, medians of several rounds. Calls use copies of the
weights in turn, so that no cache holds them all. The last lines time training's products, in GFLOP/s.

    python -m benchmarks.kernels
"""

import statistics
import timeit
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from itertools import cycle

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.support.shapes import MODELS
from kronos_model.engine.linear import Affine, FusedLinear
from kronos_model.engine.sampling import sort_descending
from kronos_model.finetuning.stages.cpu_products import OneDnnProducts
from kronos_model.layers import rotate

SMALL = MODELS["small"]
HEADS, HEAD_DIM = SMALL["n_heads"], SMALL["d_model"] // SMALL["n_heads"]
CAPACITY, BARS, VOCABULARY, COPIES, ROUNDS = 512, 450, 1024, 16, 7


def microseconds(call: Callable[[], object], num_calls: int = 64) -> float:
    """Microseconds of one call, the median of several rounds."""
    for _ in range(8):
        call()
    return statistics.median(timeit.repeat(call, number=num_calls, repeat=ROUNDS)) / num_calls * 1e6


def rotating(layers: list[Callable[[Tensor], Tensor]], x: Tensor) -> Callable[[], Tensor]:
    turn = cycle(layers)
    return lambda: next(turn)(x)


def linears(rows: int, dtype: torch.dtype) -> tuple[float, float]:
    """A block's four products, by ``F.linear`` and by the engine's layer."""
    d_model, ff_dim = SMALL["d_model"], SMALL["ff_dim"]
    plain = ours = 0.0
    for outs, ins in ((3 * d_model, d_model), (d_model, d_model), (2 * ff_dim, d_model), (d_model, ff_dim)):
        modules = [nn.Linear(ins, outs).to(dtype) for _ in range(COPIES)]
        fused = [FusedLinear(Affine.of(module), dtype=dtype) for module in modules]
        x = torch.randn(rows, ins)
        plain += microseconds(rotating([*modules], x.to(dtype)))
        ours += microseconds(rotating([*fused], x))
    return plain, ours


def attention(rows: int, dtype: torch.dtype) -> float:
    """One query per row on its own 450 bars."""
    q = torch.randn(rows, HEADS, 1, HEAD_DIM, dtype=dtype)
    k, v = torch.randn(2, rows, HEADS, CAPACITY, HEAD_DIM, dtype=dtype)[..., :BARS, :]
    return microseconds(lambda: F.scaled_dot_product_attention(q, k, v), num_calls=16)


def training_gflops(context: AbstractContextManager[object], dtype: torch.dtype) -> float:
    """A square layer on the bars of four windows, forward, and its gradients for weight and input."""
    d_model, bars = SMALL["d_model"], 4 * 448
    layer = nn.Linear(d_model, d_model, bias=False).to(dtype)
    x = torch.randn(bars, d_model, dtype=dtype, requires_grad=True)
    gradient = torch.randn(bars, d_model, dtype=dtype)

    def both() -> None:
        with context:
            layer(x).backward(gradient)

    return 3 * 2 * bars * d_model**2 / microseconds(both, num_calls=16) / 1e3


def show(name: str, values: Iterable[float]) -> None:
    print(f"{name:<34} " + " ".join(f"{value:>10.1f}" for value in values))


def show_engine() -> None:
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; µs")
    print(f"{'':<34} {'1 row':>10} {'64 rows':>10}")
    for dtype in (torch.float32, torch.bfloat16):
        plain, ours = zip(*(linears(rows, dtype) for rows in (1, 64)), strict=True)
        name = str(dtype).removeprefix("torch.")
        show(f"{name}: F.linear, a block", plain)
        show(f"{name}: as the engine", ours)
        show(f"{name}: attention, {BARS} bars", [attention(rows, dtype) for rows in (1, 64)])

    turns = [(torch.randn(rows, 2 * HEADS, HEAD_DIM), torch.randn(rows, 1, HEAD_DIM)) for rows in (1, 64)]
    show("rotary, halves", [microseconds(lambda x=x, t=t: rotate(x, t, t)) for x, t in turns])
    pairs = [[torch.view_as_complex(torch.unflatten(one, -1, (-1, 2))) for one in both] for both in turns]
    show("rotary, complex", [microseconds(lambda x=x, t=t: x * t) for x, t in pairs])

    logits = [torch.randn(rows, VOCABULARY) for rows in (1, 64)]
    show("torch.sort", [microseconds(lambda x=x: x.sort(-1, descending=True)) for x in logits])
    show("NumPy's sort of the values", [microseconds(lambda x=x: sort_descending(x)) for x in logits])


def show_training() -> None:
    print("\ntraining's products, GFLOP/s")
    show("float32, MKL", [training_gflops(nullcontext(), torch.float32)])
    show("float32, oneDNN", [training_gflops(OneDnnProducts(), torch.float32)])
    show("bfloat16", [training_gflops(nullcontext(), torch.bfloat16)])


if __name__ == "__main__":
    with torch.inference_mode():
        show_engine()
    show_training()
