"""Latency at shares of saturation: Poisson arrivals that do not wait for earlier jobs (open loop).

    python -m benchmarks.latency [--workers 1 2] [--runs 5] [--plot latency.png]

Run nothing else on the machine: client, Redis and workers share its cores.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from benchmarks.support.harness import options
from benchmarks.support.traffic import Traffic, job_payload
from benchmarks.support.workers import REAL, TINY, Workers
from kronos_model.devices.cores import num_cores

LOOKBACK, HORIZON = 400, 24
SHARES: Final = (0.25, 0.5, 0.75, 0.9)
PERCENTILES: Final = (50, 95, 99)
COLUMNS: Final = ("share", "offered/s", "done/s", "jobs", *(f"p{level} ms" for level in PERCENTILES))
SATURATION_JOBS: Final = 256
MAX_JOBS: Final = 2000
POINT_S: Final = 4.0


def measure_curve(traffic: Traffic, runs: int) -> tuple[float, pd.DataFrame]:
    """Jobs per second at saturation, by bursts, and a row of ``COLUMNS`` for each share of it.

    A share's arrivals are the same in every call.
    """
    payloads = [job_payload(seed, LOOKBACK, HORIZON) for seed in range(16)]
    _burst_per_s(traffic, payloads, SATURATION_JOBS // 4)  # warms up
    saturation = statistics.median(_burst_per_s(traffic, payloads, SATURATION_JOBS) for _ in range(runs))
    rows = [_row(traffic, payloads, share, saturation, runs) for share in SHARES]
    return saturation, pd.DataFrame(rows, columns=list(COLUMNS))


def save_plot(curves: Mapping[str, pd.DataFrame], path: str) -> None:
    """Plot one line per percentile and curve, jobs per second against milliseconds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for (name, curve), style in zip(curves.items(), ("-", "--"), strict=False):
        for index, level in enumerate(PERCENTILES):
            line = {"marker": "o", "color": f"C{index}", "label": f"p{level}, {name}"}
            axes.plot(curve["done/s"], curve[f"p{level} ms"], style, **line)
    axes.set(xlabel="jobs/s", ylabel="latency, ms", yscale="log", title=f"{LOOKBACK} → {HORIZON} bars")
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    figure.savefig(path)


def _burst_per_s(traffic: Traffic, payloads: Sequence[dict[str, Any]], count: int) -> float:
    """Jobs per second while this process sends more than the workers can compute."""
    start = time.perf_counter()
    ids = [traffic.send(payloads[index % len(payloads)]) for index in range(count)]
    return count / (max(traffic.await_outcomes(ids)) - start)


def _row(
    traffic: Traffic, payloads: Sequence[dict[str, Any]], share: float, saturation: float, runs: int
) -> tuple[str | float, ...]:
    rng = np.random.default_rng(round(share * 100))
    offered = share * saturation
    late_by: list[float] = []
    took_s = 0.0
    for _ in range(runs):
        gaps = rng.exponential(1 / offered, size=min(MAX_JOBS, max(1, round(offered * POINT_S))))
        start = time.perf_counter()
        due = start + np.cumsum(gaps)
        ids = []
        for index, moment in enumerate(due):
            time.sleep(max(0.0, moment - time.perf_counter()))
            ids.append(traffic.send(payloads[index % len(payloads)]))
        arrivals = traffic.await_outcomes(ids)
        # Counted from the due time: a sender that is late must not make the service look faster.
        late_by += (arrivals - due).tolist()
        took_s += max(arrivals) - start
    percentiles = np.percentile(late_by, PERCENTILES) * 1000
    return f"{share:.0%}", offered, len(late_by) / took_s, len(late_by), *percentiles.tolist()


def main() -> None:
    given = options(__doc__, workers=[1, 2], runs=5, plot="")
    print(f"{num_cores()} cores, {given.runs} runs")
    curves = {}
    for number in given.workers:
        with Workers(REAL, TINY, num_workers=number) as workers, Traffic(workers) as traffic:
            name = f"{number} worker process{'es' if number > 1 else ''}"
            saturation, curves[name] = measure_curve(traffic, given.runs)
        print(f"{name}, {saturation:.1f} jobs/s at saturation")
        print(curves[name].round(1).to_string(index=False))
    if given.plot:
        save_plot(curves, given.plot)
        print(f"plot: {given.plot}")


if __name__ == "__main__":
    main()
