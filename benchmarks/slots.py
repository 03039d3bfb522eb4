"""What do more slots gain, and what do they cost a small job that joins?

For each number of slots, in turn: the time of one job of 100 paths alone and of four together (400 bars of
lookback, 24 ahead), and what a small high job of one path and 3 bars waits while large jobs fill the engine
(as in ``benchmarks.fairness``).

    python -m benchmarks.slots [--shapes mini small] [--slots 64 128] [--rounds 3] [--seconds 15]
"""

import statistics
import time
from functools import partial

from benchmarks.fairness import MAX_CONTEXT, Results, saturated, small_jobs
from benchmarks.support.harness import Table, in_turn, medians, options
from benchmarks.support.workload import random_pair, series_request
from kronos_model.engine.build import build_engine
from kronos_model.engine.engine import Engine
from kronos_model.engine.generation import SamplingParams

PATHS, LOOKBACK, HORIZON = 100, 400, 24


def jobs_s(engine: Engine, num_jobs: int) -> float:
    """Seconds of jobs that are submitted together."""
    start = time.perf_counter()
    for seed in range(num_jobs):
        engine.submit(series_request(seed, LOOKBACK, HORIZON, SamplingParams(sample_count=PATHS, seed=seed)))
    while engine.has_work:
        engine.step()
    return time.perf_counter() - start


def measure(engine: Engine, seconds: float) -> tuple[float, ...]:
    one_s, four_s = jobs_s(engine, 1), jobs_s(engine, 4)
    rate, waits = saturated(engine, small_jobs(1, 3), Results(), time.perf_counter, seconds)
    return one_s, four_s, rate, 1000 * statistics.median(waits), 1000 * statistics.quantiles(waits, n=20)[-1]


def main() -> None:
    given = options(__doc__, shapes=["mini", "small"], slots=[64, 128], rounds=3, seconds=15.0)
    table = Table(
        "shape:>6",
        "slots:>5",
        "one s:>7.2f",
        "four s:>7.2f",
        "bars/s:>7.0f",
        "median ms:>9.0f",
        "p95 ms:>8.0f",
    )
    for shape in given.shapes:
        pair = random_pair(shape)
        engines = {
            number: build_engine(*pair, max_context=MAX_CONTEXT, max_slots=number) for number in given.slots
        }
        for engine in engines.values():
            jobs_s(engine, 1)  # warm up
        cases = {number: partial(measure, engine, given.seconds) for number, engine in engines.items()}
        for number, rounds in in_turn(cases, given.rounds).items():
            table.row(shape, number, *medians(rounds))


if __name__ == "__main__":
    main()
