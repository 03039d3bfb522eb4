"""Make the example forecast that the web page shows at first: ``python -m tools.page.example``.

It starts a Redis and a worker of its own. A test holds the committed file to what the bundled model computes.
"""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.client import ForecastClient
from kronos_client.contract.results import ForecastResult

PAGE: Final = Path(__file__).parents[2] / "api_stub" / "page"
EXAMPLE: Final = PAGE / "forecast" / "example.json"
HORIZON: Final = 48
OPTIONS: Final[dict[str, Any]] = {
    "pred_len": HORIZON,
    "sample_count": 100,
    "seed": 7,
    "quantiles": (0.025, 0.1, 0.25, 0.5, 0.75, 0.9, 0.975),
    "paths": True,
    "events": ("close>last at end",),
    "statistics": True,
}
SETTINGS: Final = {
    "KRONOS_MODEL": "kronos-tiny",
    "KRONOS_TOKENIZER": "",
    "KRONOS_MAX_CONTEXT": "",
    "KRONOS_DEVICE": "cpu",
    "KRONOS_ENGINE": "torch",
}
DECIMALS: Final = 3
"""A price's line on the chart needs no more, and the first load stays small."""
TIMEOUT_S: Final = 300


def example(client: ForecastClient) -> dict[str, Any]:
    """The forecast of the sample, whose last bars are held out, as the page reads it."""
    with (PAGE / "sample.csv").open() as file:
        rows = list(csv.DictReader(file))
    known, actual = rows[:-HORIZON], rows[-HORIZON:]
    candles: dict[str, Any] = {"timestamps": [row["timestamps"] for row in known]}
    candles |= {name: [float(row[name]) for row in known] for name in rows[0] if name != "timestamps"}
    times = [row["timestamps"] for row in actual]
    return _short(client.forecast(candles, future_timestamps=times, timeout_s=TIMEOUT_S, **OPTIONS))


def _short(result: ForecastResult) -> dict[str, Any]:
    """A result as the page needs it: without what differs from run to run, and without unseen columns."""
    document = result.model_dump(mode="json")
    for name in ("worker", "timings_ms", "engine"):
        del document[name]
    for series in document["series"]:
        del series["scoring"], series["manifest"]
        series["id"] = "sample.csv"
        series["quantiles"] = {level: {"close": of["close"]} for level, of in series["quantiles"].items()}
        series["paths"] = {name: series["paths"][name] for name in ("high", "low", "close")}
    rounded: dict[str, Any] = _rounded(document)
    return rounded


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return round(value, DECIMALS) if isinstance(value, float) else value


def main() -> None:
    """Compute the example and write it."""
    command = [sys.executable, "-m", "celery", "-A", "worker.app", "worker"]
    with LocalRedis() as redis:
        settings = os.environ | SETTINGS | {"KRONOS_REDIS_URL": redis.url}
        worker = subprocess.Popen(command, env=settings)
        try:
            with ForecastClient(redis.url) as client:
                EXAMPLE.write_text(json.dumps(example(client), separators=(",", ":")) + "\n")
        finally:
            worker.terminate()
            worker.wait(TIMEOUT_S)


if __name__ == "__main__":
    main()
