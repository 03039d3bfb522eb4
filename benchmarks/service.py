"""How much time does the service add to the engine, through Celery and a real Redis?

    python -m benchmarks.service [--parts burst idle null curve] [--runs 5] [--plot latency.png]

burst   64 single-series jobs enqueued at once, against the engine alone: Kronos-small's shape with random
        weights, float32, 400 bars of lookback, 100 bars ahead. Service and engine take turns.
idle    time that an idle worker adds to the engine's, for one job with 512 bars of lookback
null    jobs per second of a worker whose model costs nothing: 512 bars as base64, events on, results stored
curve   latency at shares of saturation, Poisson arrivals, one worker process and two

Run nothing else on the machine: client, Redis and workers share its cores.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.support.direct import MAX_CONTEXT, DirectEngine
from benchmarks.support.latency_curve import Curve, measure_curve, save_plot
from benchmarks.support.shapes import save_random_pair
from benchmarks.support.traffic import BACKLOG, Traffic, instrument, job_payload
from benchmarks.support.workers import NULL, REAL, Workers
from kronos_cli.stack.own_commands import BUNDLED_MODEL
from kronos_client.client import ForecastClient

NUM_JOBS, LOOKBACK, HORIZON = 64, 400, 100
IDLE_LOOKBACK, IDLE_HORIZON, IDLE_JOBS, IDLE_WARM_UP = 512, 4, 100, 20
NULL_LOOKBACK, NULL_HORIZON, NULL_JOBS = 512, 24, 1500
WAIT_S: Final = 300

TINY = {"KRONOS_MODEL": BUNDLED_MODEL, "KRONOS_MAX_CONTEXT": "512"}


def burst(runs: int) -> None:
    """64 jobs at once through the service and through the engine alone."""
    with tempfile.TemporaryDirectory() as folder:
        paths = save_random_pair("small", Path(folder))
        settings = paths | {"KRONOS_MAX_CONTEXT": str(MAX_CONTEXT)}
        jobs = [instrument(seed, LOOKBACK, HORIZON) for seed in range(NUM_JOBS)]
        with (
            DirectEngine(*paths.values(), jobs=NUM_JOBS, lookback=LOOKBACK, horizon=HORIZON) as engine,
            Workers(REAL, settings) as workers,
            ForecastClient(workers.url) as client,
        ):

            def through_service() -> float:
                start = time.perf_counter()
                handles = [
                    client.submit(past.as_dict(), future_timestamps=future, seed=seed)
                    for seed, (past, future) in enumerate(jobs)
                ]
                for handle in handles:
                    handle.wait(WAIT_S)
                return time.perf_counter() - start

            through_service()
            pairs = [(engine.run_s(), through_service()) for _ in range(runs)]
    direct, service = (statistics.median(times) for times in zip(*pairs, strict=True))
    print(f"{'run':>6} {'engine s':>9} {'service s':>10} {'times':>7}")
    for number, (one, other) in enumerate(pairs, 1):
        print(f"{number:>6} {one:>9.2f} {other:>10.2f} {other / one:>7.3f}")
    print(f"{'median':>6} {direct:>9.2f} {service:>10.2f} {service / direct:>7.3f}")


def idle(runs: int) -> None:
    """One job after the other on an idle worker. The engine alone takes turns with it."""
    past, future = instrument(1, IDLE_LOOKBACK, IDLE_HORIZON)
    rows: list[tuple[float, ...]] = []
    alone: list[float] = []
    with (
        Workers(REAL, TINY) as workers,
        DirectEngine(
            BUNDLED_MODEL, BUNDLED_MODEL, jobs=1, lookback=IDLE_LOOKBACK, horizon=IDLE_HORIZON
        ) as engine,
        ForecastClient(workers.url) as client,
    ):

        def one_job() -> tuple[float, ...]:
            start = time.perf_counter()
            handle = client.submit(past.as_dict(), future_timestamps=future, seed=1)
            submitted = time.perf_counter()
            timings = handle.wait(WAIT_S).timings_ms
            wall_ms = (time.perf_counter() - start) * 1000
            own_ms = timings.prefill + timings.decode
            # The worker's timings start in the middle of submit, when the job gets its time.
            return wall_ms, (submitted - start) * 1000, timings.total - own_ms, own_ms, wall_ms - own_ms

        for _ in range(runs):
            for _ in range(IDLE_WARM_UP):
                one_job()
            rows += [one_job() for _ in range(IDLE_JOBS)]
            alone += [engine.run_s() * 1000 for _ in range(IDLE_WARM_UP + IDLE_JOBS)][IDLE_WARM_UP:]
    names = ("from submit to result", "  submit", "  queue and worker", "  engine", "added by the service")
    print(f"{'ms':<24} {'median':>8} {'p90':>8}")
    for name, values in [*zip(names, zip(*rows, strict=True), strict=True), ("engine alone", alone)]:
        print(f"{name:<24} {statistics.median(values):>8.2f} {statistics.quantiles(values, n=10)[-1]:>8.2f}")


def null(runs: int) -> None:
    """The jobs per second of a worker whose model costs nothing, from a full backlog."""
    payloads = [job_payload(seed, NULL_LOOKBACK, NULL_HORIZON) for seed in range(8)]
    rows = []
    with Workers(NULL, TINY) as workers, Traffic(workers.url) as traffic:
        for number in range(1 + runs):
            count = NULL_JOBS if number else NULL_JOBS // 5  # the first one warms up
            ids = [traffic.send(payloads[index % len(payloads)], BACKLOG) for index in range(count)]
            used_s = workers.cpu_s()
            start = traffic.release_backlog()
            end = max(traffic.await_outcomes(ids, WAIT_S))
            rows.append((count / (end - start), (workers.cpu_s() - used_s) / count * 1000))
    print(f"{'run':>6} {'jobs/s':>8} {'worker CPU ms/job':>20}")
    for number, (rate, cpu_ms) in enumerate(rows[1:], 1):
        print(f"{number:>6} {rate:>8.0f} {cpu_ms:>20.2f}")
    medians = [statistics.median(column) for column in zip(*rows[1:], strict=True)]
    print(f"{'median':>6} {medians[0]:>8.0f} {medians[1]:>20.2f}")


def curve(runs: int, plot: Path | None) -> None:
    """Latency over load, with one worker process and with two."""
    curves: list[Curve] = []
    for num_workers in (1, 2):
        with Workers(REAL, TINY, num_workers=num_workers) as workers, Traffic(workers.url) as traffic:
            curves.append(measure_curve(traffic, num_workers, runs))
    for one in curves:
        print(one.table())
    if plot is not None:
        save_plot(curves, plot)
        print(f"plot: {plot}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    names = ("burst", "idle", "null", "curve")
    parser.add_argument("--parts", nargs="+", choices=names, default=names)
    parser.add_argument("--runs", type=int, default=5, help="repetitions of each part; medians are given")
    parser.add_argument("--plot", type=Path, help="where to save the latency curve, as .png or .svg")
    given = parser.parse_args()
    parts: dict[str, Callable[[], None]] = {
        "burst": lambda: burst(given.runs),
        "idle": lambda: idle(given.runs),
        "null": lambda: null(given.runs),
        "curve": lambda: curve(given.runs, given.plot),
    }
    print(f"{len(os.sched_getaffinity(0))} cores, medians of {given.runs} runs")
    for name in given.parts:
        print(f"\n== {name}")
        parts[name]()


if __name__ == "__main__":
    main()
