"""What does a small job wait for when large ones fill the engine, and what does that cost?

Large low-priority jobs keep the engine full: 256 paths of 140 bars each. Every second or so comes a high job
of one path and 3 bars. Its time is compared with the same job alone, and the bars per second of all jobs with
those of the large ones alone. Each round measures all three in turn. No scheduling can avoid the small jobs'
chunks: their lookbacks, and their tokens turned back into bars. Jobs of more paths than there are spare slots
make large ones suspend paths: ``--paths 30 --bars 24``. With ``--clock cpu`` seconds are CPU time of one
thread, which other programs change little.

    python -m benchmarks.fairness [--shape small] [--rounds 3] [--seconds 40] [--clock wall|cpu]
                                  [--paths 1] [--bars 3]
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.support.harness import medians, options
from benchmarks.support.workload import random_pair, series_request
from kronos_model.devices.cores import num_cores
from kronos_model.engine.build import build_engine
from kronos_model.engine.engine import Engine
from kronos_model.engine.generation import Generation, SamplingParams, SeriesRequest

LOOKBACK, MAX_CONTEXT = 120, 512
LARGE_PATHS, LARGE_HORIZON = 256, 140
NUM_LARGE = 2
PAUSE_S = 1.0
"""Between the end of a small job and the next."""

Clock = Callable[[], float]
Submit = Callable[[Engine, int], Generation]


def large(seed: int) -> SeriesRequest:
    sampling = SamplingParams(sample_count=LARGE_PATHS, seed=seed)
    return replace(series_request(seed, LOOKBACK, LARGE_HORIZON, sampling), priority="low")


def small_jobs(num_paths: int, num_bars: int) -> Submit:
    """Submits a small job to an engine, with the number as its seed."""

    def submit(engine: Engine, seed: int) -> Generation:
        sampling = SamplingParams(sample_count=num_paths, seed=seed)
        return engine.submit(replace(series_request(seed, LOOKBACK, num_bars, sampling), priority="high"))

    return submit


class Results:
    """Whether a job gives bit for bit the same, whatever it shared the engine with."""

    def __init__(self) -> None:
        self._first: dict[tuple[int, int], NDArray[np.float32]] = {}
        self.num_compared = self.num_equal = 0

    def add(self, job: Generation) -> None:
        sampling = job.request.sampling
        key = sampling.sample_count, sampling.seed
        if key in self._first:
            self.num_compared += 1
            self.num_equal += np.array_equal(job.paths, self._first[key])
        else:
            self._first[key] = job.paths


def alone_s(
    engine: Engine, submit: Submit, results: Results, clock: Clock, count: int
) -> list[tuple[float, float]]:
    """Seconds of small jobs, one after the other, in an idle engine; and those in chunks."""
    times = []
    for seed in range(count):
        start, chunks_s = clock(), 0.0
        job = submit(engine, seed)
        while engine.has_work:
            step_start = clock()
            engine.step()
            prefill_s, decode_s = sum(engine.last_step.prefill_s), sum(engine.last_step.decode_s)
            chunks_s += (clock() - step_start) * prefill_s / (prefill_s + decode_s)
        times.append((clock() - start, chunks_s))
        results.add(job)
    return times


def saturated(
    engine: Engine, submit: Submit | None, results: Results, clock: Clock, seconds: float
) -> tuple[float, list[float]]:
    """Bars per second of all jobs while large ones fill the engine, and the seconds of the small ones."""
    running = [engine.submit(large(seed)) for seed in range(NUM_LARGE)]
    for _ in range(20):
        engine.step()
    times: list[float] = []
    num_bars, seed = 0, NUM_LARGE
    start = clock()
    following, submitted, waiting = start + PAUSE_S, 0.0, None
    while (now := clock()) < start + seconds:
        if submit is not None and waiting is None and now >= following:
            waiting, submitted = submit(engine, len(times)), now
        engine.step()
        num_bars += engine.last_step.num_bars
        if waiting is not None and waiting.done:
            following = clock() + PAUSE_S
            times.append(following - PAUSE_S - submitted)
            results.add(waiting)
            waiting = None
        for job in [job for job in running if job.done]:
            running.remove(job)
            results.add(job)
            running.append(engine.submit(large(seed)))
            seed += 1
    rate = num_bars / (clock() - start)
    for job in running if waiting is None else [*running, waiting]:
        engine.cancel(job)
    engine.step()
    return rate, times


def main() -> None:
    given = options(__doc__, shape="small", rounds=3, seconds=40.0, clock="wall", paths=1, bars=3)
    clock = {"wall": time.perf_counter, "cpu": time.process_time}[given.clock]
    if given.clock == "cpu":
        torch.set_num_threads(1)

    engine = build_engine(*random_pair(given.shape), max_context=MAX_CONTEXT)
    submit = small_jobs(given.paths, given.bars)
    results = Results()
    alone_s(engine, submit, results, clock, 5)  # warm up
    alone, rates, rates_with_small, times = [], [], [], []
    for _ in range(given.rounds):
        alone += alone_s(engine, submit, results, clock, 20)
        rates.append(saturated(engine, None, results, clock, given.seconds)[0])
        rate, waited = saturated(engine, submit, results, clock, given.seconds)
        rates_with_small.append(rate)
        times += waited
    print(f"{given.shape}, {torch.get_num_threads()} threads of {num_cores()} cores, {given.rounds} rounds")
    base, chunks_s = medians(alone)
    print(f"small job alone: median {base * 1000:.0f} ms, {chunks_s * 1000:.0f} of them in chunks")
    print(f"{len(times)} small jobs behind {NUM_LARGE} large ones:")
    for name, value in (
        ("median", statistics.median(times)),
        ("p95", statistics.quantiles(times, n=20)[-1]),
        ("max", max(times)),
    ):
        print(f"{name:>8} {value * 1000:.0f} ms, {value / base:.1f} times")
    rate, with_small = statistics.median(rates), statistics.median(rates_with_small)
    print(f"bars/s: {rate:.0f} without small jobs, {with_small:.0f} with ({with_small / rate - 1:+.1%})")
    chunks_share = chunks_s / (PAUSE_S + statistics.mean(times))
    print(
        f"{results.num_equal} of {results.num_compared} results are bit for bit those of the same job before"
    )
    print(f"the small jobs' chunks alone take {chunks_share:.1%} of the time")


if __name__ == "__main__":
    main()
