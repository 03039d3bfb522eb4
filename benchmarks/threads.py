"""What do waiting OpenMP threads cost, alone and with a busy loop on each core?

A worker lets them spin briefly (``spin_briefly``). Compared with one thread and with PyTorch's default, each
in its own process, in turn: Kronos-small's shape, 200 bars of lookback, 40 ahead, 1 and 16 paths.

    python -m benchmarks.threads [--rounds 3]
"""

import multiprocessing
import os
import statistics
from contextlib import contextmanager
from functools import partial

from benchmarks.support.harness import apart, in_turn, medians, options
from kronos_model.devices.cores import num_cores, spin_briefly

CASES = ("one thread", "default", "spin briefly")
LOOKBACK, HORIZON, PATHS, RUNS = 200, 40, (1, 16), 3


def forecast_s(case: str) -> list[float]:
    """Median seconds for each number of paths, in a new process."""
    if case == "spin briefly":
        spin_briefly()
    import torch  # reads the variables

    from benchmarks.support.shapes import random_pair
    from benchmarks.support.workload import run_s, series_request
    from kronos_model.engine.build import build_engine
    from kronos_model.engine.generation import SamplingParams

    torch.set_num_threads(1 if case == "one thread" else num_cores())
    engine = build_engine(*random_pair("small"), max_context=512)

    def median_s(num_paths: int) -> float:
        sampling = SamplingParams(sample_count=num_paths, seed=1)
        request = series_request(1, LOOKBACK, HORIZON, sampling)
        return statistics.median(run_s(engine, [request]) for _ in range(RUNS))

    median_s(1)  # warm up
    return [median_s(num_paths) for num_paths in PATHS]


def spin() -> None:
    while True:
        pass


@contextmanager
def busy_loops(count: int):
    """Keep ``count`` cores busy."""
    loops = [multiprocessing.get_context("spawn").Process(target=spin, daemon=True) for _ in range(count)]
    for loop in loops:
        loop.start()
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()


def with_busy_loops(num_busy: int, case: str) -> list[float]:
    with busy_loops(num_busy):
        return apart(forecast_s, case)


def main() -> None:
    given = options(__doc__, rounds=3)
    cases = {
        (num_busy, case): partial(with_busy_loops, num_busy, case)
        for num_busy in (0, num_cores())
        for case in CASES
    }
    times = in_turn(cases, given.rounds)
    print(f"{os.cpu_count()} cores, medians of {given.rounds} processes, seconds for {PATHS} paths")
    for (num_busy, case), of_case in times.items():
        shown = ", ".join(f"{value:.3f}" for value in medians(of_case))
        print(f"{num_busy} busy loops, {case:>13}: {shown}")


if __name__ == "__main__":
    main()
