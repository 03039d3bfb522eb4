"""What does the service cost on top of the engine? A table of measures, figures and targets.

    python -m benchmarks.service [--parts backlog idle burst submit start trips path profile] [--runs 3]

backlog  jobs/s and CPU of a worker whose model costs nothing, in turn with a bare Celery worker (8 threads,
         late acknowledgement) whose task returns a constant of the same size, both pinned to 1, 2 and all
         cores. All jobs wait when a run begins: 512 bars as base64 (39 kB), 24 bars ahead (11 kB), events on
idle     time that an idle worker adds to the engine's, for one job of 512 bars
burst    64 single-series jobs at once, in turn with the engine alone: Kronos-small's shape with random
         weights, float32, 400 bars of lookback, 100 bars ahead
submit   CPU of ``client.submit``
start    the first ``submit`` of a process on one core, from the import on
trips    round trips to Redis, counted by a proxy, without those of an idle process
path     files and functions (code objects of kronos_client, worker, kronos_model) that run for one job of a
         DataFrame, in client and worker, once both are warm; threads whose code of ours runs while jobs come
profile  CPU of each stage of a job in a worker whose model costs nothing

Figures are medians of the runs, and ranges in brackets. Run nothing else on the machine: client, Redis and
workers share its cores.
"""

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import torch
from redis import Redis

from benchmarks.support.harness import Row, Table, in_turn, options, own_process, spread
from benchmarks.support.job_way import path, profile, start, submit, trips
from benchmarks.support.traffic import WAIT_S, Traffic, instrument, job_payload
from benchmarks.support.workers import BARE, NULL, REAL, TINY, Workers
from benchmarks.support.workload import MAX_CONTEXT, engine_s, save_random_pair
from kronos_client.client import ForecastClient
from kronos_client.contract.names import result_key
from kronos_model.devices.cores import num_cores
from kronos_model.devices.probe import TorchProbe

BACKLOG, BACKLOG_LOOKBACK, BACKLOG_HORIZON = 1000, 512, 24
BURST, BURST_LOOKBACK, BURST_HORIZON = 64, 400, 100
IDLE, IDLE_WARM_UP, IDLE_LOOKBACK, IDLE_HORIZON = 100, 20, 512, 4

Rows = Iterator[Row]


def backlog(given: argparse.Namespace) -> Rows:
    payloads = [job_payload(seed % 8, BACKLOG_LOOKBACK, BACKLOG_HORIZON) for seed in range(BACKLOG)]
    for cores in sorted({min(number, num_cores()) for number in (1, 2, num_cores())}):
        with (
            tempfile.NamedTemporaryFile("w", suffix=".json") as file,
            Workers(NULL, TINY, num_cores=cores) as own,
            Traffic(own) as own_traffic,
        ):
            job_id = own_traffic.send(payloads[0])
            own_traffic.await_outcomes([job_id])
            with Redis.from_url(own.url) as redis:
                json.dump(json.loads(redis.get(result_key(job_id)))["result"], file)
            file.flush()
            with (
                Workers(BARE, {"BENCHMARK_RESULT": file.name}, num_cores=cores) as bare,
                Traffic(bare) as bare_traffic,
            ):
                cases = {"own": own_traffic, "bare": bare_traffic}
                work = {name: partial(traffic.run_backlog, payloads) for name, traffic in cases.items()}
                runs = in_turn(work, given.runs + 1)
        rates, cpu_ms = {}, {}
        for name, (_, *measured) in runs.items():  # the first run warms up
            rates[name] = [BACKLOG / run_s for run_s, _ in measured]
            cpu_ms[name] = [cpu_s / BACKLOG * 1000 for _, cpu_s in measured]
        on = f"{cores} core{'s' if cores > 1 else ''}"
        times = [own / bare for own, bare in zip(rates["own"], rates["bare"], strict=True)]
        yield Row(f"jobs/s from a backlog, {on}", spread(rates["own"], ".0f"))
        yield Row("  of bare Celery", spread(rates["bare"], ".0f"))
        yield Row("  times bare Celery", spread(times), "≥ 2.5")
        yield Row("  CPU ms a job", spread(cpu_ms["own"]), "≤ 1.0")
        yield Row("  CPU ms a job, bare Celery", spread(cpu_ms["bare"]))


def idle(given: argparse.Namespace) -> Rows:
    past, future = instrument(1, IDLE_LOOKBACK, IDLE_HORIZON)
    with Workers(REAL, TINY) as workers, ForecastClient(workers.url) as client:

        def added_ms() -> float:
            start = time.perf_counter()
            handle = client.submit(past.as_dict(), future_timestamps=future, sample_count=1, seed=1)
            timings = handle.wait(WAIT_S).timings_ms
            return (time.perf_counter() - start) * 1000 - timings.prefill - timings.decode

        runs = [[added_ms() for _ in range(IDLE_WARM_UP + IDLE)][IDLE_WARM_UP:] for _ in range(given.runs)]
    yield Row("added by an idle worker, ms", spread([*map(statistics.median, runs)], ".1f"), "≤ 3")
    p90 = statistics.quantiles([added for run in runs for added in run], n=10)[-1]
    yield Row("  90th percentile", f"{p90:.1f}")


def burst(given: argparse.Namespace) -> Rows:
    jobs = [instrument(seed, BURST_LOOKBACK, BURST_HORIZON) for seed in range(BURST)]
    with tempfile.TemporaryDirectory() as folder:
        paths = save_random_pair("small", Path(folder))
        settings = paths | {"KRONOS_MAX_CONTEXT": str(MAX_CONTEXT)}
        with (
            own_process() as process,
            Workers(REAL, settings) as workers,
            ForecastClient(workers.url) as client,
        ):

            def alone_s() -> float:
                sizes = BURST, BURST_LOOKBACK, BURST_HORIZON
                return process.submit(engine_s, *paths.values(), *sizes).result(WAIT_S)

            def service_s() -> float:
                start = time.perf_counter()
                handles = [
                    client.submit(past.as_dict(), future_timestamps=future, sample_count=1, seed=seed)
                    for seed, (past, future) in enumerate(jobs)
                ]
                for handle in handles:
                    handle.wait(WAIT_S)
                return time.perf_counter() - start

            runs = in_turn({"alone": alone_s, "service": service_s}, given.runs + 1)
    _, *pairs = zip(runs["service"], runs["alone"], strict=True)  # the first run warms up
    yield Row(
        "64 jobs at once, times the engine alone",
        spread([own / alone for own, alone in pairs], ".3f"),
        "≤ 1.03",
    )


PARTS: Final = {part.__name__: part for part in (backlog, idle, burst, submit, start, trips, path, profile)}


def main() -> None:
    given = options(__doc__, parts=[*PARTS], runs=3)
    cpu = TorchProbe().name(torch.device("cpu"))
    print(f"{num_cores()} cores of {cpu}, Python {platform.python_version()}, medians of {given.runs} runs")
    table = Table("measure:<52", "figure:<20", "target:<9", "detail:<1")
    for name in given.parts:
        for row in PARTS[name](given):
            table.row(*row)


if __name__ == "__main__":
    main()
