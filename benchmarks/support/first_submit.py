"""Prints what the first ``submit`` of a process costs, as JSON; ``BENCHMARK_URL`` is Redis's."""

import json
import os
import sys
import threading
import time
from datetime import datetime, timedelta

BARS = 400
CLOSE = [100.0 + bar % 7 for bar in range(BARS)]
CANDLES = {"open": CLOSE, "high": CLOSE, "low": CLOSE, "close": CLOSE, "volume": CLOSE, "amount": CLOSE}
TIMES = [(datetime(2025, 1, 6) + timedelta(hours=bar)).isoformat() for bar in range(BARS)]

start, start_cpu = time.perf_counter(), time.process_time()
from kronos_client import ForecastClient  # noqa: E402

client = ForecastClient(os.environ["BENCHMARK_URL"])
client.submit(CANDLES, timestamps=TIMES, pred_len=24)
measured = {
    "wall_ms": (time.perf_counter() - start) * 1000,
    "cpu_ms": (time.process_time() - start_cpu) * 1000,
    "imported": [name for name in ("celery", "kombu", "pandas") if name in sys.modules],
    "threads": [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()],
}
print(json.dumps(measured))
