"""Where does a decode step's time go?

Kronos-small's shape with random weights, in the middle of 400 → 100 bars. Milliseconds per step by kind of
operation (self time in PyTorch's profiler), and the rest of the step: Python and dispatch. What the native
engine computes in its kernels is one kind.

    python -m benchmarks.step_profile [--cases 1x1 1x64 64x1] [--dtype float32] [--engines native torch]
"""

import itertools
import statistics
import time

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.decode import HORIZON, MAX_CONTEXT, requests_of, start_decoding
from benchmarks.support.harness import Table, options
from benchmarks.support.workload import random_pair
from kronos_model.engine.build import build_engine
from kronos_model.engine.engine import Engine

NUM_STEPS = 12
KERNELS = "native kernels"
KINDS = {
    KERNELS: (KERNELS,),
    "weights": ("mkldnn::_linear_pointwise", "aten::linear", "aten::addmm", "aten::mm"),
    "attention": ("flash_attention", "aten::lerp", "aten::sigmoid"),
    "into the cache": ("index_put",),
    "norms": ("rms_norm", "aten::pow", "aten::mean", "aten::rsqrt"),
    "noise": ("aten::exponential_",),
    "other operations": ("",),
}
"""Parts of the operations' names; the first kind with a part of a name counts."""


def step_ms(engine: Engine) -> list[float]:
    moments = [time.perf_counter()]
    for _ in range(NUM_STEPS):
        engine.step()
        moments.append(time.perf_counter())
    return [1000 * (end - start) for start, end in itertools.pairwise(moments)]


def show_kernels(engine: Engine) -> None:
    """Have PyTorch's profiler see the native kernels."""
    pool = engine._runner._network._pool  # type: ignore[attr-defined]
    run = pool.run

    def profiled(*arguments: int) -> None:
        with record_function(KERNELS):
            run(*arguments)

    pool.run = profiled


def main() -> None:
    given = options(__doc__, cases=["1x1", "1x64", "64x1"], dtype="float32", engines=["native", "torch"])
    pair = random_pair("small")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {given.dtype}; ms per step")
    table = Table(
        "case:>6", "engine:>7", "step:>7.2f", *(f"{name}:>16.2f" for name in (*KINDS, "between them"))
    )
    for case, kind in itertools.product(given.cases, given.engines):
        dtype = getattr(torch, given.dtype)
        engine = build_engine(*pair, max_context=MAX_CONTEXT, dtype=dtype, kind=kind)
        if engine.kind == "native":
            show_kernels(engine)
        requests = requests_of(case)
        start_decoding(engine, requests)
        for _ in range(min(20, HORIZON - 2 * NUM_STEPS - len(requests))):
            engine.step()
        median_ms = statistics.median(step_ms(engine))
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            profiled_ms = statistics.mean(step_ms(engine))
        by_kind = dict.fromkeys(KINDS, 0.0)
        for event in profiler.key_averages():
            name = next(name for name, parts in KINDS.items() if any(part in event.key for part in parts))
            by_kind[name] += event.self_cpu_time_total / 1000 / NUM_STEPS
        table.row(case, engine.kind, median_ms, *by_kind.values(), profiled_ms - sum(by_kind.values()))


if __name__ == "__main__":
    main()
