"""How does a worker's memory grow with the jobs it has computed, and are their results always the same?

The engine alone, in one process. Jobs are mixed: 1 or 4 series, 16 to 512 bars of lookback, a horizon of 1 to
128 bars, 1 to 64 paths, with filters or without; up to 16 run together, and one of ten is cancelled.
"times" is the memory after so many jobs, divided by that of the first line. "results" is a hash of all bars
so far: equal for any number of threads.

    python -m benchmarks.memory [--jobs 100 1000 10000] [--model kronos-tiny] [--dtype float32]
                                [--engine auto] [--threads 0]
"""

import hashlib
import time

import numpy as np
import psutil
import torch

from benchmarks.support.harness import Table, options
from benchmarks.support.workload import MAX_CONTEXT, series_request
from kronos_model.engine.build import build_engine
from kronos_model.engine.engine import Engine
from kronos_model.engine.generation import Generation, SamplingParams
from kronos_model.model_pair import load_pair

MOST_AT_ONCE = 16
CANCELLED = 0.1


def submit_job(engine: Engine, rng: np.random.Generator) -> list[Generation]:
    """Small horizons and few paths are as frequent as large ones: their logarithms are uniform."""
    num_series = int(rng.choice([1, 1, 1, 4]))
    lookback = int(rng.integers(16, MAX_CONTEXT + 1))
    horizon, paths = (round(2 ** rng.uniform(0, most)) for most in (7, 6))
    filters = {"top_k": int(rng.choice([0, 20])), "top_p": float(rng.choice([1.0, 0.9]))}
    sampling = SamplingParams(sample_count=paths, seed=int(rng.integers(2**31)), **filters)
    return [
        engine.submit(series_request(seed, lookback, horizon, sampling))
        for seed in rng.integers(1000, size=num_series).tolist()
    ]


def compute_jobs(engine: Engine, rng: np.random.Generator, num_jobs: int, results: "hashlib._Hash") -> None:
    """Submit so many jobs and step until all have ended."""
    running: list[list[Generation]] = []
    while num_jobs or running:
        while num_jobs and len(running) < MOST_AT_ONCE:
            running.append(submit_job(engine, rng))
            num_jobs -= 1
            if rng.random() < CANCELLED:
                for generation in running[rng.integers(len(running))]:
                    engine.cancel(generation)
        for generation in engine.step():
            if generation.error is None:
                results.update(generation.paths.tobytes())
        running = [job for job in running if not all(generation.done for generation in job)]


def main() -> None:
    given = options(
        __doc__, jobs=[100, 1000, 10000], model="kronos-tiny", dtype="float32", engine="auto", threads=0
    )
    if given.threads:
        torch.set_num_threads(given.threads)
    pair = load_pair(given.model)
    dtype = getattr(torch, given.dtype)
    engine = build_engine(pair.model, pair.tokenizer, max_context=MAX_CONTEXT, dtype=dtype, kind=given.engine)
    print(f"engine {engine.kind}, {torch.get_num_threads()} threads")
    rng, results = np.random.default_rng(0), hashlib.sha256()
    table = Table("jobs:>6", "minutes:>7.1f", "MB:>6.0f", "times:>6.2f", "results:>16")
    start, num_done, first_mb = time.perf_counter(), 0, 0.0
    for num_jobs in given.jobs:
        compute_jobs(engine, rng, num_jobs - num_done, results)
        num_done, resident_mb = num_jobs, psutil.Process().memory_info().rss / 1e6
        first_mb = first_mb or resident_mb
        minutes = (time.perf_counter() - start) / 60
        table.row(num_done, minutes, resident_mb, resident_mb / first_mb, results.hexdigest()[:16])


if __name__ == "__main__":
    main()
