"""What do waiting threads cost, alone and with a busy loop on each core?

Both engines, each case in its own process, in turn: Kronos-small's shape, 200 bars of lookback, 40 ahead, 1
and 16 paths. PyTorch's threads spin while they wait; a worker lets them spin briefly (``spin_briefly``).
"after a pause" is how much longer a step of one path takes after 20 ms without one.

    python -m benchmarks.threads [--rounds 3]
"""

import multiprocessing
import os
import statistics
import time
from contextlib import contextmanager
from functools import partial
from itertools import product

from benchmarks.support.harness import Table, apart, in_turn, medians, options
from kronos_model.devices.cores import num_cores, spin_briefly

CASES = ("one thread", "default", "spin briefly")
LOOKBACK, HORIZON, PATHS, RUNS = 200, 40, (1, 16), 3
PAUSE_S = 0.02


def forecast_s(kind: str, case: str) -> list[float]:
    """Seconds for each number of paths, and a step's after a pause; medians in a new process."""
    if case == "spin briefly":
        spin_briefly()
    import torch  # reads the variables

    from benchmarks.support.workload import random_pair, run_s, series_request
    from kronos_model.engine.build import build_engine
    from kronos_model.engine.generation import SamplingParams

    torch.set_num_threads(1 if case == "one thread" else num_cores())
    engine = build_engine(*random_pair("small"), max_context=512, kind=kind)
    requests = [
        series_request(1, LOOKBACK, HORIZON, SamplingParams(sample_count=num_paths, seed=1))
        for num_paths in PATHS
    ]

    def step_s(pause_s: float) -> float:
        time.sleep(pause_s)
        start = time.perf_counter()
        engine.step()
        return time.perf_counter() - start

    run_s(engine, requests[:1])  # warm up
    whole = [statistics.median(run_s(engine, [request]) for _ in range(RUNS)) for request in requests]
    generation = engine.submit(requests[0])
    step_s(0)  # the lookback's
    at_once, paused = zip(*((step_s(0), step_s(PAUSE_S)) for _ in range(HORIZON // 2 - 2)), strict=True)
    engine.cancel(generation)
    return [*whole, statistics.median(paused) - statistics.median(at_once)]


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


def with_busy_loops(num_busy: int, kind: str, case: str) -> list[float]:
    with busy_loops(num_busy):
        return apart(forecast_s, kind, case)


def main() -> None:
    given = options(__doc__, rounds=3)
    cases = {
        case: partial(with_busy_loops, *case)
        for case in product((0, num_cores()), ("torch", "native"), CASES)
    }
    times = in_turn(cases, given.rounds)
    print(f"{os.cpu_count()} cores, medians of {given.rounds} processes")
    table = Table(
        "busy loops:>10",
        "engine:>6",
        "threads:>12",
        *(f"{paths} paths s:>10.3f" for paths in PATHS),
        "after a pause ms:>16.2f",
    )
    for case, measured in times.items():
        *whole, pause_s = medians(measured)
        table.row(*case, *whole, 1e3 * pause_s)


if __name__ == "__main__":
    main()
