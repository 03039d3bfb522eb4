"""How many jobs per second do one, two and more worker processes on this machine compute?

    python -m benchmarks.scaling [--settings 1x1 1x2 2x1] [--runs 5] [--jobs 64] [--size tiny|small]

A setting is PROCESSESxTHREADS, with OMP_NUM_THREADS=THREADS in each process. A run enqueues all jobs at once
and ends when the last result is stored. Jobs are single series of 400 bars, 96 bars ahead, with the bundled
checkpoint or Kronos-small's shape with random weights, in float32. The settings take turns in each round, so
that other load on the machine affects all of them. The output has medians, the spread, and the load average
before and after.

Run nothing else on the machine: client, Redis and workers share its cores, and all threads of a process wait
for one that is interrupted.
"""

import argparse
import os
import statistics
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.support.harness import Table, in_turn, options
from benchmarks.support.shapes import save_random_pair
from benchmarks.support.traffic import Traffic, job_payload
from benchmarks.support.workers import REAL, Workers
from kronos_cli.stack.own_commands import BUNDLED_MODEL
from kronos_model.devices.cores import num_cores

LOOKBACK, HORIZON = 400, 96


def measure(given: argparse.Namespace) -> dict[str, list[tuple[float, float]]]:
    """Wall-clock and CPU seconds of each run, by setting. All start at once; idle workers cost nothing."""
    payloads = [job_payload(seed, LOOKBACK, HORIZON) for seed in range(given.jobs)]
    with ExitStack() as exits:
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory()))
        model = {"KRONOS_MODEL": BUNDLED_MODEL} if given.size == "tiny" else save_random_pair("small", folder)
        cases = {}
        for name in given.settings:
            num_workers, num_threads = name.split("x")
            variables = {"KRONOS_MAX_CONTEXT": "512", "OMP_NUM_THREADS": num_threads, **model}
            workers = exits.enter_context(Workers(REAL, variables, num_workers=int(num_workers)))
            cases[name] = partial(exits.enter_context(Traffic(workers)).run_backlog, payloads)
        runs = in_turn(cases, 1 + given.runs)
    return {name: measured[1:] for name, measured in runs.items()}  # the first run warms up


def main() -> None:
    usual = list(dict.fromkeys(["1x1", f"1x{num_cores()}", f"2x{max(1, num_cores() // 2)}"]))
    given = options(__doc__, settings=usual, runs=5, jobs=64, size="tiny")
    before, runs, after = os.getloadavg()[0], measure(given), os.getloadavg()[0]
    print(
        f"{num_cores()} cores, medians of {given.runs} runs of {given.jobs} jobs, "
        f"model {given.size}; load average before {before:.1f}, after {after:.1f}"
    )
    table = Table("setting:>8", "jobs/s:>8.2f", "lowest:>8.2f", "highest:>8.2f", "cores used:>11.2f")
    for name, measured in runs.items():
        rates = [given.jobs / run_s for run_s, _ in measured]
        used = statistics.median(cpu_s / run_s for run_s, cpu_s in measured)
        table.row(name, statistics.median(rates), min(rates), max(rates), used)


if __name__ == "__main__":
    main()
