"""How much faster is the engine than recomputing everything for each bar?

Kronos-small's shape with random weights, 400 bars of lookback, 100 bars ahead. The naive loop, in float32, is
timed on a few steps across the horizon and scaled to all steps; several series are one batch. The engine is
timed as a whole, from submission to bars. The last lines compare a decode step of one path with the time to
read its weights once, at the memory bandwidth of the same run.

    python -m benchmarks.decode [--cases 1x1 1x10 1x64 64x1] [--dtypes float32 bfloat16] [--runs 5]
"""

import argparse
import os
import statistics
import time
from dataclasses import dataclass

import torch

from benchmarks.support.naive import NaiveForecaster
from benchmarks.support.shapes import random_pair
from benchmarks.support.workload import series_request
from kronos_model.engine.build import build_engine
from kronos_model.engine.engine import Engine
from kronos_model.engine.generation import SamplingParams, SeriesRequest
from kronos_model.model import Kronos
from kronos_model.tokenizer import KronosTokenizer

LOOKBACK, HORIZON, MAX_CONTEXT = 400, 100, 512
NAIVE_STEPS_AT = (0, 33, 66, 99)
BANDWIDTH_BYTES = 512 * 2**20


@dataclass(frozen=True)
class Run:
    """Seconds of one run of the engine."""

    total_s: float
    prefill_s: float
    step_s: float  # median over its decode steps


def naive_s(model: Kronos, tokenizer: KronosTokenizer, requests: list[SeriesRequest]) -> float:
    """Seconds for the whole horizon, from the mean of a few steps across it."""
    forecaster = NaiveForecaster(model, tokenizer, requests, MAX_CONTEXT)
    prompt = forecaster.tokens
    steps = []
    for step in NAIVE_STEPS_AT:
        generated = prompt[..., -1:].repeat(1, 1, step)  # the time does not depend on the tokens
        forecaster.tokens = torch.cat((prompt, generated), dim=-1)
        start = time.perf_counter()
        forecaster.step()
        steps.append(time.perf_counter() - start)
    return statistics.mean(steps) * HORIZON


def engine_run(engine: Engine, requests: list[SeriesRequest]) -> Run:
    """The whole forecast: tokenizer, prefill, every bar, and decoding to prices."""
    start = time.perf_counter()
    prefill_s, steps = 0.0, []
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        engine.step()
        prefill_s += engine.last_step.prefill_s
        steps.append(engine.last_step.decode_s)
    return Run(time.perf_counter() - start, prefill_s, statistics.median(steps))


def requests_of(case: str) -> list[SeriesRequest]:
    """The series of a case: "4x10" is 4 series with 10 paths each."""
    num_series, num_paths = map(int, case.split("x"))
    return [
        series_request(seed, LOOKBACK, HORIZON, SamplingParams(sample_count=num_paths, seed=seed))
        for seed in range(num_series)
    ]


def read_bandwidth() -> float:
    """Bytes per second read from memory, outside of caches. The best of several passes."""
    data = torch.ones(BANDWIDTH_BYTES // 4)
    passes = []
    for _ in range(10):
        start = time.perf_counter()
        data.sum()
        passes.append(time.perf_counter() - start)
    return BANDWIDTH_BYTES / min(passes)


def multiplied_bytes(model: Kronos) -> int:
    """Bytes of the float32 weights that a decode step multiplies: blocks, dependency-aware layer, heads."""
    attention = model.dep_layer.cross_attn
    modules = (model.transformer, attention.k_proj, attention.v_proj, attention.out_proj, model.head)
    return sum(4 * parameter.numel() for module in modules for parameter in module.parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=["1x1", "1x10", "1x64", "64x1"])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--naive-runs", type=int, default=2)
    parser.add_argument("--shape", default="small")
    arguments = parser.parse_args()

    model, tokenizer = random_pair(arguments.shape)
    engines = {
        dtype: build_engine(model, tokenizer, max_context=MAX_CONTEXT, dtype=getattr(torch, dtype))
        for dtype in arguments.dtypes
    }
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads of {os.cpu_count()} cores, "
        f"shape {arguments.shape}, {LOOKBACK} → {HORIZON} bars, medians of {arguments.runs} runs"
    )
    print(
        f"{'case':>6} {'dtype':>9} {'naive s':>9} {'engine s':>9} {'min–max s':>13} {'prefill s':>9} "
        f"{'step ms':>8} {'times':>7}"
    )
    steps_of_one_path: dict[str, float] = {}
    for case in arguments.cases:
        requests = requests_of(case)
        naive = [naive_s(model, tokenizer, requests) for _ in range(arguments.naive_runs)]
        slow = statistics.median(naive)
        for dtype, engine in engines.items():
            engine_run(engine, requests)  # warm up
            runs = [engine_run(engine, requests) for _ in range(arguments.runs)]
            totals = [run.total_s for run in runs]
            fast = statistics.median(totals)
            prefill = statistics.median(run.prefill_s for run in runs)
            step = statistics.median(run.step_s for run in runs)
            if case == "1x1":
                steps_of_one_path[dtype] = step
            print(
                f"{case:>6} {dtype:>9} {slow:>9.2f} {fast:>9.3f} {min(totals):>6.3f}–{max(totals):<6.3f} "
                f"{prefill:>9.3f} {step * 1000:>8.2f} {slow / fast:>7.1f}",
                flush=True,
            )
    bandwidth, weights = read_bandwidth(), multiplied_bytes(model)
    read_s = weights / bandwidth
    print(f"\nmemory is read at {bandwidth / 1e9:.1f} GB/s, {weights / 1e6:.1f} MB in {read_s * 1000:.2f} ms")
    for dtype, step in steps_of_one_path.items():
        print(f"a {dtype} step of one path: {step * 1000:.2f} ms, {step / read_s:.2f} × that (of float32)")


if __name__ == "__main__":
    main()
