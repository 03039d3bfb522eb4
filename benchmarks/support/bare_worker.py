"""Plain Celery, with a task that returns a constant: ``celery -A benchmarks.support.bare_worker worker``.

``BENCHMARK_RESULT`` names the JSON file of the constant.
"""

import json
import os
from pathlib import Path
from typing import Any, Final

from celery import Celery, signals
from redis import Redis

from benchmarks.support.workers import BARE_READY_KEY
from kronos_client.contract.names import FORECAST_TASK

URL: Final = os.environ["KRONOS_REDIS_URL"]
RESULT: Final = json.loads(Path(os.environ["BENCHMARK_RESULT"]).read_text(encoding="utf-8"))

app = Celery("bare", broker=URL, backend=URL)
app.conf.update(task_acks_late=True, worker_send_task_events=True, broker_connection_retry_on_startup=True)


@app.task(name=FORECAST_TASK)
def forecast(job: Any) -> Any:
    return RESULT


@signals.worker_ready.connect
def note_ready(**_: Any) -> None:
    with Redis.from_url(URL) as redis:
        redis.incr(BARE_READY_KEY)
