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
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.support.harness import Table, medians, options, own_process
from benchmarks.support.latency_curve import measure_curve, save_plot
from benchmarks.support.shapes import save_random_pair
from benchmarks.support.traffic import WAIT_S, Traffic, instrument, job_payload
from benchmarks.support.workers import NULL, REAL, Workers
from benchmarks.support.workload import MAX_CONTEXT, engine_s
from kronos_cli.stack.own_commands import BUNDLED_MODEL
from kronos_client.client import ForecastClient
from kronos_model.devices.cores import num_cores

NUM_JOBS, LOOKBACK, HORIZON = 64, 400, 100
IDLE_LOOKBACK, IDLE_HORIZON, IDLE_JOBS, IDLE_WARM_UP = 512, 4, 100, 20
NULL_LOOKBACK, NULL_HORIZON, NULL_JOBS = 512, 24, 1500

TINY = {"KRONOS_MODEL": BUNDLED_MODEL, "KRONOS_MAX_CONTEXT": "512"}


def burst(given: argparse.Namespace) -> None:
    """64 jobs at once through the service and through the engine alone."""
    jobs = [instrument(seed, LOOKBACK, HORIZON) for seed in range(NUM_JOBS)]
    with tempfile.TemporaryDirectory() as folder:
        paths = save_random_pair("small", Path(folder))
        settings = paths | {"KRONOS_MAX_CONTEXT": str(MAX_CONTEXT)}
        with (
            own_process() as process,
            Workers(REAL, settings) as workers,
            ForecastClient(workers.url) as client,
        ):

            def run_both() -> tuple[float, float]:
                alone = process.submit(engine_s, *paths.values(), NUM_JOBS, LOOKBACK, HORIZON)
                alone_s = alone.result(WAIT_S)
                start = time.perf_counter()
                handles = [
                    client.submit(past.as_dict(), future_timestamps=future, sample_count=1, seed=seed)
                    for seed, (past, future) in enumerate(jobs)
                ]
                for handle in handles:
                    handle.wait(WAIT_S)
                return alone_s, time.perf_counter() - start

            run_both()  # warms up
            pairs = [run_both() for _ in range(given.runs)]
    table = Table("run:>6", "engine s:>9.2f", "service s:>10.2f", "times:>7.3f")
    for name, (alone_s, service_s) in [*enumerate(pairs, 1), ("median", medians(pairs))]:
        table.row(name, alone_s, service_s, service_s / alone_s)


def idle(given: argparse.Namespace) -> None:
    """One job after the other on an idle worker. The engine alone takes turns with it."""
    past, future = instrument(1, IDLE_LOOKBACK, IDLE_HORIZON)
    rows: list[tuple[float, ...]] = []
    alone: list[float] = []
    with (
        Workers(REAL, TINY) as workers,
        own_process() as process,
        ForecastClient(workers.url) as client,
    ):

        def one_job() -> tuple[float, ...]:
            start = time.perf_counter()
            handle = client.submit(past.as_dict(), future_timestamps=future, sample_count=1, seed=1)
            submitted = time.perf_counter()
            timings = handle.wait(WAIT_S).timings_ms
            wall_ms = (time.perf_counter() - start) * 1000
            own_ms = timings.prefill + timings.decode
            # The worker's timings start in the middle of submit, when the job gets its time.
            return wall_ms, (submitted - start) * 1000, timings.total - own_ms, own_ms, wall_ms - own_ms

        def alone_ms() -> float:
            run = process.submit(engine_s, BUNDLED_MODEL, BUNDLED_MODEL, 1, IDLE_LOOKBACK, IDLE_HORIZON)
            return 1000 * run.result(WAIT_S)

        for _ in range(given.runs):
            rows += [one_job() for _ in range(IDLE_WARM_UP + IDLE_JOBS)][IDLE_WARM_UP:]
            alone += [alone_ms() for _ in range(IDLE_WARM_UP + IDLE_JOBS)][IDLE_WARM_UP:]
    names = ("from submit to result", "  submit", "  queue and worker", "  engine", "added by the service")
    table = Table("ms:<24", "median:>8.2f", "p90:>8.2f")
    for name, values in [*zip(names, zip(*rows, strict=True), strict=True), ("engine alone", alone)]:
        table.row(name, statistics.median(values), statistics.quantiles(values, n=10)[-1])


def null(given: argparse.Namespace) -> None:
    """The jobs per second of a worker whose model costs nothing, from a full backlog."""
    payloads = [job_payload(seed % 8, NULL_LOOKBACK, NULL_HORIZON) for seed in range(NULL_JOBS)]
    with Workers(NULL, TINY) as workers, Traffic(workers) as traffic:
        traffic.run_backlog(payloads[: NULL_JOBS // 5])  # warms up
        runs = [traffic.run_backlog(payloads) for _ in range(given.runs)]
    rows = [(NULL_JOBS / run_s, cpu_s / NULL_JOBS * 1000) for run_s, cpu_s in runs]
    table = Table("run:>6", "jobs/s:>8.0f", "worker CPU ms/job:>20.2f")
    for name, row in [*enumerate(rows, 1), ("median", medians(rows))]:
        table.row(name, *row)


def curve(given: argparse.Namespace) -> None:
    """Latency over load, with one worker process and with two."""
    curves = {}
    for num_workers, name in ((1, "1 worker process"), (2, "2 worker processes")):
        with Workers(REAL, TINY, num_workers=num_workers) as workers, Traffic(workers) as traffic:
            saturation, curves[name] = measure_curve(traffic, given.runs)
        print(f"{name}, {saturation:.1f} jobs/s at saturation")
        print(curves[name].round(1).to_string(index=False))
    if given.plot:
        save_plot(curves, given.plot)
        print(f"plot: {given.plot}")


PARTS = {"burst": burst, "idle": idle, "null": null, "curve": curve}


def main() -> None:
    given = options(__doc__, parts=[*PARTS], runs=5, plot="")
    print(f"{num_cores()} cores, medians of {given.runs} runs")
    for name in given.parts:
        print(f"\n== {name}")
        PARTS[name](given)


if __name__ == "__main__":
    main()
