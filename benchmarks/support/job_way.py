"""Parts of ``benchmarks.service``: what one job costs its client, and what it runs through."""

import argparse
import json
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pandas as pd
import psutil

from benchmarks.support.harness import Row, apart, spread
from benchmarks.support.observers import CallRecorder, ask
from benchmarks.support.round_trips import RoundTrips
from benchmarks.support.traffic import WAIT_S, Traffic, job_payload
from benchmarks.support.workers import NULL, OBSERVED, TINY, Workers, pinned
from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.client import ForecastClient
from kronos_model.bars.synthetic import candles
from kronos_model.processes.children import module_command, own_environment

LOOKBACK, BARS, HORIZON = 512, 400, 24
NUM_SUBMITS, NUM_SINGLE, NUM_MANY, NUM_BACKLOG = 100, 100, 16, 512
IDLE_S: Final = 6.0
"""Longer than between two renewals of claims."""
APART: Final = ("kronos-heartbeat", "kronos-watchdog", "kronos-loader", "kronos-isolated")
"""Threads for status, watchdog, loading and isolation."""

Rows = Iterator[Row]
Calls = list[dict[str, list[str]]]
"""The functions by thread, in the client's process and in the worker's."""


def submit(given: argparse.Namespace) -> Rows:
    shapes = {"a DataFrame": (frame, "≤ 1.6"), "arrays": (arrays, "≤ 0.6")}
    with LocalRedis() as server:
        for name, (make, target) in shapes.items():
            runs = [apart(submit_cpu_ms, server.url, make, NUM_SUBMITS) for _ in range(given.runs)]
            yield Row(f"submit of {name} of 400 × 6, CPU ms", spread(runs), target)


def start(given: argparse.Namespace) -> Rows:
    command = [*pinned([0]), *module_command("benchmarks.support.first_submit")]
    with LocalRedis() as server:
        environment = own_environment({"BENCHMARK_URL": server.url})
        printed = [subprocess.check_output(command, env=environment) for _ in range(1 + given.runs)]
    _, *runs = map(json.loads, printed)  # the first run compiles
    yield Row("first submit, import included, ms", spread([run["wall_ms"] for run in runs], ".0f"), "half")
    yield Row("  CPU ms", spread([run["cpu_ms"] for run in runs], ".0f"))
    yield Row(
        "  of celery, kombu, pandas it imports",
        str(len(runs[0]["imported"])),
        "0",
        ", ".join(runs[0]["imported"]),
    )
    yield Row("  threads it starts", str(len(runs[0]["threads"])), "0", ", ".join(runs[0]["threads"]))


def trips(given: argparse.Namespace) -> Rows:
    bars = frame()
    payloads = [job_payload(seed % 8, LOOKBACK, HORIZON) for seed in range(NUM_BACKLOG)]
    with (
        Workers(NULL, TINY, counts=True) as workers,
        Traffic(workers) as traffic,
        RoundTrips(workers.url) as of_client,
        ForecastClient(of_client.url) as client,
    ):
        of_worker = workers.round_trips

        def singly() -> None:
            for _ in range(NUM_SINGLE):
                client.submit(bars, pred_len=HORIZON).wait(WAIT_S)

        def together() -> None:
            for outcome in client.forecast_many([bars] * NUM_MANY, pred_len=HORIZON):
                outcome.unwrap()

        singly()
        together()
        rates = {trips: trips.idle_per_s(IDLE_S) for trips in (of_worker, of_client)}

        def counted(side: RoundTrips, work: Callable[[], object], number: int) -> tuple[str, str]:
            measured = [side.during(work, rates[side]) for _ in range(given.runs)]
            total, commands = (
                sum((trips for trips, _ in measured)),
                sum((by for _, by in measured), Counter()),
            )
            shown = (f"{name} {num / given.runs / number:.1f}" for name, num in commands.most_common(5))
            return f"{total / given.runs / number:.1f}", ", ".join(shown)

        cases = (
            ("Redis round trips, worker, a job alone", of_worker, singly, NUM_SINGLE, "≤ 3"),
            (
                "  worker, a job of a backlog",
                of_worker,
                lambda: traffic.run_backlog(payloads),
                NUM_BACKLOG,
                "",
            ),
            ("  client, a job", of_client, singly, NUM_SINGLE, "≤ 2"),
            ("  client, forecast_many of 16", of_client, together, 1, "≤ 2"),
        )
        for name, side, work, number, target in cases:
            total, commands = counted(side, work, number)
            yield Row(name, total, target, commands)


def path(given: argparse.Namespace) -> Rows:
    with observed("calls") as (workers, address):
        single, several = apart(calls_of_jobs, workers.url, address, IDLE_S)
        (pid,) = workers.pids
        num_threads = psutil.Process(pid).num_threads()
    functions = {*chain.from_iterable(chain.from_iterable(process.values() for process in single))}
    files = {function.partition(":")[0] for function in functions}
    engine = "kronos_model/engine/"
    for name, found, target in (("files", files, "≤ 60"), ("functions", functions, "≤ 400")):
        num_engine = sum(place.startswith(engine) for place in found)
        yield Row(f"{name} of one forecast", f"{len(found)}", target, f"{num_engine} of the engine")
    sides = zip(("client", "worker"), several, strict=True)
    threads = [f"{side} {name}" for side, process in sides for name, ran in process.items() if ran]
    passed = [name for name in threads if not name.endswith(APART)]
    yield Row("threads that a job passes, or that keep its claim", f"{len(passed)}", "≤ 3", ", ".join(passed))
    others = [name for name in threads if name not in passed]
    yield Row("  others of ours", f"{len(others)}", "", ", ".join(others))
    yield Row("  all of the worker's process", f"{num_threads}", "", "with those of libraries")


def profile(given: argparse.Namespace) -> Rows:
    payloads = [job_payload(seed % 8, LOOKBACK, HORIZON) for seed in range(NUM_BACKLOG)]
    runs = []
    with observed("stages") as (workers, address), Traffic(workers) as traffic:
        traffic.run_backlog(payloads)
        for _ in range(given.runs):
            ask(address, "start")
            _, cpu_s = traffic.run_backlog(payloads)
            spent_s = ask(address, "stop")
            runs.append(spent_s | {"everything else": cpu_s - sum(spent_s.values())})
    for stage in runs[0]:
        yield Row(f"CPU µs a job: {stage}", spread([run[stage] / NUM_BACKLOG * 1e6 for run in runs], ".0f"))


@contextmanager
def observed(observer: str) -> Iterator[tuple[Workers, str]]:
    """A worker with an observer, and the address at which it is asked."""
    with tempfile.TemporaryDirectory() as folder:
        address = str(Path(folder) / "socket")
        variables = {"BENCHMARK_OBSERVER": observer, "BENCHMARK_SOCKET": address}
        with Workers(OBSERVED, TINY | variables) as workers:
            yield workers, address


def frame() -> pd.DataFrame:
    """Hourly bars: six columns, and an index of times."""
    return pd.DataFrame(candles(1, BARS).columns, index=pd.date_range("2025-01-06", periods=BARS, freq="h"))


def arrays() -> dict[str, Any]:
    """The same as arrays."""
    bars = frame()
    return {"timestamps": bars.index.to_numpy(), **{name: bars[name].to_numpy() for name in bars}}


def submit_cpu_ms(url: str, make_candles: Callable[[], Any], num_jobs: int) -> float:
    """CPU milliseconds of one ``submit``, all threads together, after some that warm up."""
    given = make_candles()
    with ForecastClient(url) as client:
        for _ in range(num_jobs // 10):
            client.submit(given, pred_len=HORIZON)
        start = time.process_time()
        for _ in range(num_jobs):
            client.submit(given, pred_len=HORIZON)
        return (time.process_time() - start) / num_jobs * 1000


def calls_of_jobs(url: str, address: str, seconds: float) -> tuple[Calls, Calls]:
    """What runs for one job, and during some seconds of jobs; ``address`` is that of the worker's observer.

    Of five single jobs, the one with the fewest functions counts: periodic work runs during the others.
    """
    recorder, given = CallRecorder(), frame()  # before the client's threads start
    with ForecastClient(url) as client:

        def calls_during(seconds: float) -> Calls:
            ask(address, "start")
            recorder.start()
            end = time.monotonic() + seconds
            client.submit(given, pred_len=HORIZON).wait(WAIT_S)
            while time.monotonic() < end:
                client.submit(given, pred_len=HORIZON).wait(WAIT_S)
            time.sleep(0.1)  # the worker ends what follows the outcome
            return [recorder.stop(), ask(address, "stop")]

        calls_during(2.0)
        single = [calls_during(0.0) for _ in range(5)]
        return min(single, key=_num_functions), calls_during(seconds)


def _num_functions(processes: Calls) -> int:
    return sum(len(functions) for threads in processes for functions in threads.values())
