"""Requests a second of the HTTP API, compared with plain FastAPI apps around a predictor.

50 users, each with one request after the other, for a while: Kronos-small's shape, 400 bars of lookback, 24
ahead, 30 paths. Same requests. All services compute on all cores, in turn. One plain app has our engine, and
the same answers. The other computes the whole window again for every bar, as the reference does, and has one
user: under a lock more only wait longer. The defaults take a quarter of an hour.

    python -m benchmarks.http [--users 50] [--seconds 60] [--runs 3] [--shape small]
"""

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx2
import numpy as np

from benchmarks.support.harness import Table, in_turn, options, spread
from benchmarks.support.traffic import instrument
from benchmarks.support.workers import REAL, Workers
from benchmarks.support.workload import save_random_pair
from kronos_cli.stack.ports import free_port
from kronos_model.processes.children import ChildProcess, module_command, own_environment

LOOKBACK, HORIZON, PATHS, MAX_CONTEXT = 400, 24, 30, 512
START_S: Final = 120
PLAIN, RECOMPUTING, OWN = "FastAPI and a lock", "the same, recomputing", "the service"


def request(seed: int) -> dict[str, Any]:
    past, future = instrument(seed, LOOKBACK, HORIZON)
    columns = past.as_dict()
    times = columns.pop("timestamps")
    return {
        "series_id": str(seed),
        "candles": [dict(zip(columns, bar, strict=True)) for bar in zip(*columns.values(), strict=True)],
        "timestamps": list(times),
        "prediction_timestamps": list(future),
        "overrides": {"sample_count": PATHS, "top_p": 1.0, "seed": seed},
    }


@contextmanager
def serving(module: list[str], settings: dict[str, str], port: int) -> Iterator[str]:
    """A service's address, once it answers that it is ready."""
    address = f"http://127.0.0.1:{port}"
    child = ChildProcess(module[0], module_command(*module), env=own_environment() | settings, grace_s=20)
    try:
        deadline = time.monotonic() + START_S
        while True:
            try:
                if httpx2.get(f"{address}/v1/readyz").status_code == 200:
                    break
            except httpx2.TransportError:
                pass
            if child.exit_status is not None or time.monotonic() > deadline:
                sys.exit("\n".join(["the service does not start:", *child.tail(30)]))
            time.sleep(0.1)
        yield address
    finally:
        child.stop()


async def load(address: str, num_users: int, seconds: float) -> tuple[float, list[float]]:
    """Requests a second, and the seconds that each took."""
    took: list[float] = []
    bodies = [request(seed) for seed in range(num_users)]
    async with httpx2.AsyncClient(base_url=address, timeout=600) as client:
        start = time.perf_counter()

        async def user(body: dict[str, Any]) -> None:
            while (began := time.perf_counter()) < start + seconds:
                answer = await client.post("/v1/predict/single", json=body)
                answer.raise_for_status()
                assert len(answer.json()["prediction"]) == HORIZON
                took.append(time.perf_counter() - began)

        await asyncio.gather(*map(user, bodies))
        return len(took) / (time.perf_counter() - start), took


def main() -> None:
    given = options(__doc__, users=50, seconds=60.0, runs=3, shape="small")
    with tempfile.TemporaryDirectory() as folder:
        settings = save_random_pair(given.shape, Path(folder)) | {"KRONOS_MAX_CONTEXT": str(MAX_CONTEXT)}

        def measured(address: str, num_users: int = given.users) -> tuple[float, list[float]]:
            asyncio.run(load(address, min(num_users, 2), 1))  # warms up
            return asyncio.run(load(address, num_users, given.seconds))

        def plain(**further: str) -> tuple[float, list[float]]:
            port = free_port()
            module = ["uvicorn", "benchmarks.support.plain_http:app", f"--port={port}", "--log-level=warning"]
            with serving(module, settings | further, port) as address:
                return measured(address, 1 if further else given.users)

        def own() -> tuple[float, list[float]]:
            port = free_port()
            with Workers(REAL, settings) as workers:
                api = {
                    "KRONOS_REDIS_URL": workers.url,
                    "KRONOS_API_PORT": str(port),
                    "KRONOS_API_WAIT_S": "600",
                }
                with serving(["api_stub"], settings | api, port) as address:
                    return measured(address)

        runs = in_turn({PLAIN: plain, RECOMPUTING: partial(plain, RECOMPUTE="1"), OWN: own}, given.runs)
    print(f"{os.cpu_count()} cores, {given.users} users, {given.shape}, medians of {given.runs} runs")
    table = Table("service:<22", "requests/s:>18", "p50 s:>8.2f", "p95 s:>8.2f")
    for name, of_name in runs.items():
        quantiles = [np.quantile(took, (0.5, 0.95)) for _, took in of_name]
        p50, p95 = map(statistics.median, zip(*quantiles, strict=True))
        table.row(name, spread([rate for rate, _ in of_name]), p50, p95)
    for name in (PLAIN, RECOMPUTING):
        ratios = [own / plain for (own, _), (plain, _) in zip(runs[OWN], runs[name], strict=True)]
        print(f"{OWN} answers {spread(ratios)} times as many requests a second as {name}")


if __name__ == "__main__":
    main()
