"""Waiting times in a queue. One worker with kronos-tiny and its default settings, and a real Redis.

    python -m benchmarks.waiting [--parts small shares countdown] [--seconds 40] [--jobs 1000]

small      three jobs of 1 series × 1 path × 24 bars, sent behind twelve of 64 × 64 × 96 of the same priority
shares     ten low jobs of 1 path × 24 bars that wait while high ones of 1 path × 48 bars keep the worker busy
countdown  jobs of 1 path × 24 bars that become due after 10 s, against the same jobs without a countdown

Run nothing else on the machine: client, Redis and the worker share its cores.
"""

import argparse
import time

from benchmarks.support.harness import options
from benchmarks.support.traffic import Traffic, job_payload
from benchmarks.support.workers import REAL, Workers
from kronos_cli.stack.own_commands import BUNDLED_MODEL

LOOKBACK, HORIZON = 128, 24
COUNTDOWN_S = 10
NUM_HIGH = 200
"""High jobs that wait or run at any time."""
PAUSE_S = 2.0


def small(traffic: Traffic, given: argparse.Namespace) -> None:
    """Small jobs that are sent after large ones."""
    large = job_payload(0, LOOKBACK, 96, num_series=64, num_paths=64)
    for _ in range(12):
        traffic.send(large)
    time.sleep(PAUSE_S)
    sent_at = time.perf_counter()
    ids = [traffic.send(job_payload(seed, LOOKBACK, HORIZON)) for seed in range(3)]
    times = sorted(done_at - sent_at for done_at in traffic.await_outcomes(ids))
    print("small after large: done after", *(f"{seconds:.2f}" for seconds in times), "s")


def shares(traffic: Traffic, given: argparse.Namespace) -> None:
    """Low jobs while high ones keep coming."""
    payload = job_payload(0, LOOKBACK, 48)
    high = [traffic.send(payload, priority="high") for _ in range(NUM_HIGH)]
    low = [traffic.send(job_payload(seed, LOOKBACK, HORIZON), priority="low") for seed in range(10)]
    end = time.perf_counter() + given.seconds
    while time.perf_counter() < end:
        for _ in range(NUM_HIGH - len(high) + traffic.num_done(high)):
            high.append(traffic.send(payload, priority="high"))
        time.sleep(0.02)
    num_high, num_low = traffic.num_done(high), traffic.num_done(low)
    print(f"shares: {num_low} of {len(low)} low jobs done in {given.seconds:.0f} s, {num_high} high ones")


def countdown(traffic: Traffic, given: argparse.Namespace) -> None:
    """Jobs that become due at once."""
    payloads = [job_payload(seed, LOOKBACK, HORIZON) for seed in range(given.jobs)]
    traffic.run_backlog(payloads[:100])  # warms up
    work_s, _ = traffic.run_backlog(payloads)
    due_at = time.perf_counter() + COUNTDOWN_S
    ids = [traffic.send(payload, countdown=COUNTDOWN_S) for payload in payloads]
    late_s = max(traffic.await_outcomes(ids)) - due_at
    print(f"countdown: the last of {given.jobs} jobs {late_s:.1f} s after the first was due, ", end="")
    print(f"{late_s / work_s:.2f} times the {work_s:.1f} s of the work")


def main() -> None:
    parts = {part.__name__: part for part in (small, shares, countdown)}
    given = options(__doc__, parts=list(parts), seconds=40.0, jobs=1000)
    settings = {"KRONOS_MODEL": BUNDLED_MODEL, "KRONOS_DRAIN_TIMEOUT_S": "0"}
    for name in given.parts:
        with Workers(REAL, settings) as workers, Traffic(workers) as traffic:
            parts[name](traffic, given)


if __name__ == "__main__":
    main()
