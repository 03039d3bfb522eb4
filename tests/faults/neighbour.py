"""Another app's Celery, on the default keys of the same database: ``celery -A tests.faults.neighbour``."""

import os
import time

from celery import Celery
from redis import Redis

app = Celery(
    "neighbour",
    broker=os.environ.get("NEIGHBOUR_URL"),
    backend=os.environ.get("NEIGHBOUR_URL"),
    set_as_current=False,
)
app.conf.update(task_acks_late=True, worker_prefetch_multiplier=1)


@app.task(name="neighbour.nap")
def nap(key: str, seconds: float) -> str:
    """Count a start, and take long."""
    Redis.from_url(os.environ["NEIGHBOUR_URL"]).incr(key)
    time.sleep(seconds)
    return key
