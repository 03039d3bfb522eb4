"""Latency over load with Poisson arrivals that do not wait for earlier jobs (open loop)."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.support.traffic import Traffic, job_payload

LOOKBACK, HORIZON = 400, 24
SHARES: Final = (0.25, 0.5, 0.75, 0.9)
PERCENTILES: Final = (50, 95, 99)
SATURATION_JOBS: Final = 256
MAX_JOBS: Final = 2000
POINT_S: Final = 4.0
WAIT_S: Final = 120.0


@dataclass(frozen=True)
class Point:
    """One load: jobs per second offered and done, and percentiles of the latency in ms."""

    share: float
    offered_per_s: float
    done_per_s: float
    num_jobs: int
    latencies_ms: tuple[float, ...]


@dataclass(frozen=True)
class Curve:
    """All loads for one number of worker processes, and the jobs per second at saturation."""

    num_workers: int
    saturation_per_s: float
    points: tuple[Point, ...]

    def table(self) -> str:
        lines = [
            f"{self.num_workers} worker process(es), {self.saturation_per_s:.1f} jobs/s at saturation",
            f"{'share':>6} {'offered/s':>10} {'done/s':>8} {'jobs':>6}"
            + "".join(f"{f'p{level} ms':>10}" for level in PERCENTILES),
        ]
        lines += [
            f"{point.share:>6.0%} {point.offered_per_s:>10.1f} {point.done_per_s:>8.1f} {point.num_jobs:>6}"
            + "".join(f"{latency:>10.1f}" for latency in point.latencies_ms)
            for point in self.points
        ]
        return "\n".join(lines)


def measure_curve(traffic: Traffic, num_workers: int, runs: int) -> Curve:
    """Measure saturation by bursts, then each share of it. A share's arrivals are the same in every call."""
    payloads = [job_payload(seed, LOOKBACK, HORIZON) for seed in range(16)]
    _burst_per_s(traffic, payloads, SATURATION_JOBS // 4)  # warms up
    saturation = statistics.median(_burst_per_s(traffic, payloads, SATURATION_JOBS) for _ in range(runs))
    points = [_point(traffic, payloads, share, saturation, runs) for share in SHARES]
    return Curve(num_workers, saturation, tuple(points))


def save_plot(curves: Sequence[Curve], path: Path) -> None:
    """Plot one line per percentile and number of workers, jobs per second against milliseconds."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for curve, style in zip(curves, ("-", "--"), strict=False):
        for index, level in enumerate(PERCENTILES):
            axes.plot(
                [point.done_per_s for point in curve.points],
                [point.latencies_ms[index] for point in curve.points],
                style,
                marker="o",
                color=f"C{index}",
                label=f"p{level}, {curve.num_workers} worker process{'es' if curve.num_workers > 1 else ''}",
            )
    axes.set(xlabel="jobs/s", ylabel="latency, ms", yscale="log", title=f"{LOOKBACK} → {HORIZON} bars")
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    figure.savefig(path)
    plt.close(figure)


def _burst_per_s(traffic: Traffic, payloads: Sequence[dict[str, Any]], count: int) -> float:
    """Jobs per second while this process sends more than the workers can compute."""
    start = time.perf_counter()
    ids = [traffic.send(payloads[index % len(payloads)]) for index in range(count)]
    return count / (max(traffic.await_outcomes(ids, WAIT_S)) - start)


def _point(
    traffic: Traffic, payloads: Sequence[dict[str, Any]], share: float, saturation: float, runs: int
) -> Point:
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
        arrivals = traffic.await_outcomes(ids, WAIT_S)
        # Counted from the due time: a sender that is late must not make the service look faster.
        late_by += [arrived - moment for arrived, moment in zip(arrivals, due, strict=True)]
        took_s += max(arrivals) - start
    percentiles = np.percentile(late_by, PERCENTILES) * 1000
    return Point(share, offered, len(late_by) / took_s, len(late_by), tuple(percentiles.tolist()))
