"""How many jobs a second do one, two and more worker processes on this machine give?

    python -m benchmarks.scaling [--settings 1x1 1x2 2x1] [--runs 5] [--jobs 64] [--size tiny|small]

A setting is processes x threads: so many computing threads (OMP_NUM_THREADS) has each process. A run enqueues
all jobs at once and stops when the last result is stored: single series of 400 bars, 96 to come, the bundled
checkpoint or Kronos-small's shape with random weights, float32. The settings take turns in each round, so
that what else the machine does falls on all of them. Medians and the spread are given, with the load average
before and after.

Needs nothing to run beside it: client, Redis and workers share the machine's cores, and threads that wait for
one that was interrupted compute nothing.
"""

import argparse
import os
import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.support.shapes import random_pair
from benchmarks.support.traffic import BACKLOG, Traffic, job_payload
from benchmarks.support.workers import REAL, Workers
from kronos_cli.stack.own_commands import BUNDLED_MODEL

LOOKBACK, HORIZON = 400, 96
WAIT_S: Final = 600
MAX_CONTEXT: Final = "512"


@dataclass
class Setting:
    """A number of worker processes, and the seconds that each run took."""

    name: str
    workers: Workers
    traffic: Traffic
    runs_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    def run(self, payloads: list[dict[str, Any]]) -> None:
        """Have all jobs computed, once."""
        ids = [self.traffic.send(payload, BACKLOG) for payload in payloads]
        used_s = self.workers.cpu_s()
        start = self.traffic.release_backlog()
        self.runs_s.append(max(self.traffic.await_outcomes(ids, WAIT_S)) - start)
        self.cpu_s.append(self.workers.cpu_s() - used_s)


def model_settings(size: str, folder: Path) -> dict[str, str]:
    """The variables that choose the checkpoint."""
    if size == "tiny":
        return {"KRONOS_MODEL": BUNDLED_MODEL, "KRONOS_MAX_CONTEXT": MAX_CONTEXT}
    paths = {"KRONOS_MODEL": str(folder / "model"), "KRONOS_TOKENIZER": str(folder / "tokenizer")}
    for module, path in zip(random_pair(size), paths.values(), strict=True):
        module.save_pretrained(path)
    return paths | {"KRONOS_MAX_CONTEXT": MAX_CONTEXT}


def measure(given: argparse.Namespace) -> list[Setting]:
    """All settings are up at once; those that are not measured wait for jobs, which costs nothing."""
    payloads = [job_payload(seed, LOOKBACK, HORIZON) for seed in range(given.jobs)]
    for payload in payloads:
        payload["sampling"]["sample_count"] = given.samples
    with ExitStack() as exits:
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory()))
        variables = model_settings(given.size, folder)
        settings = []
        for name in given.settings:
            num_workers, num_threads = map(int, name.split("x"))
            threads = {"OMP_NUM_THREADS": str(num_threads)}
            workers = exits.enter_context(Workers(REAL, variables | threads, num_workers=num_workers))
            settings.append(Setting(name, workers, exits.enter_context(Traffic(workers.url))))
        for number in range(1 + given.runs):
            for setting in settings:
                setting.run(payloads)
                if number == 0:  # it warms up
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
