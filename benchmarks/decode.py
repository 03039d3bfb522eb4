"""How much faster is cached decoding than recomputing everything for each bar?

Kronos-small's shape with random weights, float32, 400 bars of lookback, 100 to come, one series. The naive
loop is timed on a few steps spread over the horizon and scaled to all of them; the engine is timed whole.

    python -m benchmarks.decode [--paths 1 10] [--runs 5]
"""

import argparse
import os
import statistics
import time

import torch

from benchmarks.support.naive import NaiveForecaster
from benchmarks.support.shapes import random_pair
from benchmarks.support.workload import series_request
from kronos_model.engine.build import build_engine
from kronos_model.engine.engine import Engine
from kronos_model.engine.sequence import SamplingParams, SeriesRequest
from kronos_model.model import Kronos
from kronos_model.tokenizer import KronosTokenizer

LOOKBACK, HORIZON, MAX_CONTEXT = 400, 100, 512
NAIVE_STEPS_AT = (0, 33, 66, 99)


def naive_s(model: Kronos, tokenizer: KronosTokenizer, request: SeriesRequest) -> float:
    """Seconds for the whole horizon, from the mean of a few steps spread over it."""
    forecaster = NaiveForecaster(model, tokenizer, [request], MAX_CONTEXT)
    prompt = forecaster.tokens
    steps = []
    for step in NAIVE_STEPS_AT:
        generated = prompt[..., -1:].repeat(1, 1, step)  # which tokens does not matter for time
        forecaster.tokens = torch.cat((prompt, generated), dim=-1)
        start = time.perf_counter()
        forecaster.step()
        steps.append(time.perf_counter() - start)
    return statistics.mean(steps) * HORIZON


def cached_s(engine: Engine, request: SeriesRequest) -> float:
    """Seconds for the whole forecast: tokenizer, prefill, every bar, and the way back."""
    start = time.perf_counter()
    engine.submit(request)
    while engine.has_work:
        engine.step()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--paths", type=int, nargs="+", default=[1, 10])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--shape", default="small")
    arguments = parser.parse_args()

    model, tokenizer = random_pair(arguments.shape)
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads of {os.cpu_count()} cores, "
        f"shape {arguments.shape}, {LOOKBACK} → {HORIZON} bars, medians of {arguments.runs} runs"
    )
    print(f"{'paths':>6} {'naive s':>9} {'cached s':>9} {'min–max s':>15} {'times':>7}")
    for paths in arguments.paths:
        request = series_request(1, LOOKBACK, HORIZON, SamplingParams(sample_count=paths, seed=1))
        engine = build_engine(model, tokenizer, max_context=MAX_CONTEXT, max_slots=paths)
        cached_s(engine, request)  # warm up
        cached = [cached_s(engine, request) for _ in range(arguments.runs)]
        naive = [naive_s(model, tokenizer, request) for _ in range(max(1, arguments.runs // 2))]
        slow, fast = statistics.median(naive), statistics.median(cached)
        spread = f"{min(cached):.2f}–{max(cached):.2f}"
        print(f"{paths:>6} {slow:>9.2f} {fast:>9.2f} {spread:>15} {slow / fast:>7.1f}")


if __name__ == "__main__":
    main()
