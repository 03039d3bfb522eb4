"""Where does a decode step's time go?

Kronos-small's shape with random weights, in the middle of 400 → 100 bars. Milliseconds per step by kind of
operation (self time in PyTorch's profiler), and the rest of the step: Python and dispatch.

    python -m benchmarks.step_profile [--cases 1x1 1x64 64x1] [--dtype float32]
"""

import argparse
import statistics
import time

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.decode import HORIZON, MAX_CONTEXT, requests_of
from benchmarks.support.shapes import random_pair
from kronos_model.engine.build import build_engine
from kronos_model.engine.engine import Engine

NUM_STEPS = 12
KINDS = {
    "weights": ("mkldnn::_linear_pointwise", "aten::linear", "aten::addmm", "aten::mm"),
    "attention": ("flash_attention", "aten::lerp", "aten::sigmoid"),
    "into the cache": ("index_put",),
    "norms": ("rms_norm", "aten::pow", "aten::mean", "aten::rsqrt"),
    "noise": ("aten::exponential_",),
}
"""Parts of the operations' names. All others are "other operations"."""


def step_times(engine: Engine) -> list[float]:
    seconds = []
    for _ in range(NUM_STEPS):
        start = time.perf_counter()
        engine.step()
        seconds.append(time.perf_counter() - start)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=["1x1", "1x64", "64x1"])
    parser.add_argument("--dtype", default="float32")
    arguments = parser.parse_args()
    pair = random_pair("small")
    names = [*KINDS, "other operations", "between them"]
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {arguments.dtype}; ms per step")
    print(f"{'case':>6} {'step':>7} " + " ".join(f"{name:>16}" for name in names))
    for case in arguments.cases:
        engine = build_engine(*pair, max_context=MAX_CONTEXT, dtype=getattr(torch, arguments.dtype))
        requests = requests_of(case)
        for request in requests:
            engine.submit(request)
        num_paths = sum(request.sampling.sample_count for request in requests)
        while engine.last_step.num_bars < num_paths:  # until all lookbacks are read
            engine.step()
        for _ in range(min(20, HORIZON - 2 * NUM_STEPS - len(requests))):
            engine.step()
        step_ms = statistics.median(step_times(engine)) * 1000
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            profiled_ms = sum(step_times(engine)) * 1000 / NUM_STEPS
        by_kind = dict.fromkeys(names, 0.0)
        for event in profiler.key_averages():
            kind = next(
                (kind for kind, parts in KINDS.items() if any(part in event.key for part in parts)), None
            )
            by_kind[kind or "other operations"] += event.self_cpu_time_total / 1000 / NUM_STEPS
        by_kind["between them"] = profiled_ms - sum(by_kind.values())
        columns = " ".join(f"{by_kind[name]:>16.2f}" for name in names)
        print(f"{case:>6} {step_ms:>7.2f} {columns}", flush=True)


if __name__ == "__main__":
    main()
