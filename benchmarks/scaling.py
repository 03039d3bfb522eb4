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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.support.shapes import save_random_pair
from benchmarks.support.traffic import BACKLOG, Traffic, job_payload
from benchmarks.support.workers import REAL, Workers
from kronos_cli.stack.own_commands import BUNDLED_MODEL

LOOKBACK, HORIZON = 400, 96
WAIT_S: Final = 600


@dataclass
class Setting:
    """A number of worker processes, and the seconds that each run took."""

    name: str
    workers: Workers
    traffic: Traffic
    runs_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    def run(self, payloads: list[dict[str, Any]]) -> None:
        ids = [self.traffic.send(payload, BACKLOG) for payload in payloads]
        used_s = self.workers.cpu_s()
        start = self.traffic.release_backlog()
        self.runs_s.append(max(self.traffic.await_outcomes(ids, WAIT_S)) - start)
        self.cpu_s.append(self.workers.cpu_s() - used_s)


def model_settings(size: str, folder: Path) -> dict[str, str]:
    return {"KRONOS_MODEL": BUNDLED_MODEL} if size == "tiny" else save_random_pair(size, folder)


def measure(given: argparse.Namespace) -> list[Setting]:
    """Start all settings at once. Those that are not measured wait for jobs, which costs nothing."""
    payloads = [job_payload(seed, LOOKBACK, HORIZON) for seed in range(given.jobs)]
    for payload in payloads:
        payload["sampling"]["sample_count"] = given.samples
    with ExitStack() as exits:
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory()))
        variables = {"KRONOS_MAX_CONTEXT": "512"} | model_settings(given.size, folder)
        settings = []
        for name in given.settings:
            num_workers, num_threads = map(int, name.split("x"))
            threads = {"OMP_NUM_THREADS": str(num_threads)}
            workers = exits.enter_context(Workers(REAL, variables | threads, num_workers=num_workers))
            settings.append(Setting(name, workers, exits.enter_context(Traffic(workers.url))))
        for number in range(1 + given.runs):
            for setting in settings:
                setting.run(payloads)
                if number == 0:  # the first run warms up
                    setting.runs_s.clear()
                    setting.cpu_s.clear()
    return settings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    num_cores = len(os.sched_getaffinity(0))
    usual = list(dict.fromkeys(["1x1", f"1x{num_cores}", f"2x{max(1, num_cores // 2)}"]))
    parser.add_argument("--settings", nargs="+", default=usual, metavar="PROCESSESxTHREADS")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=64, help="in each run")
    parser.add_argument("--size", choices=("tiny", "small"), default="tiny")
    parser.add_argument("--samples", type=int, default=1, help="sample paths of each job")
    given = parser.parse_args()
    before = os.getloadavg()[0]
    settings = measure(given)
    after = os.getloadavg()[0]
    print(
        f"{num_cores} cores, medians of {given.runs} runs of {given.jobs} jobs, {given.samples} paths each, "
        f"model {given.size}; load average before {before:.1f}, after {after:.1f}"
    )
    print(f"{'setting':>8} {'jobs/s':>8} {'lowest':>8} {'highest':>8} {'bars/s':>8} {'cores used':>11}")
    for setting in settings:
        rates = [given.jobs / run_s for run_s in setting.runs_s]
        median = statistics.median(rates)
        cores = statistics.median(used / run for used, run in zip(setting.cpu_s, setting.runs_s, strict=True))
        bars = median * HORIZON * given.samples
        low, high = min(rates), max(rates)
        print(f"{setting.name:>8} {median:>8.2f} {low:>8.2f} {high:>8.2f} {bars:>8.0f} {cores:>11.2f}")


if __name__ == "__main__":
    main()
