"""Sends jobs like any Celery client, and records the times at which their results arrive."""

import json
import threading
import time
import uuid
from collections.abc import Sequence
from typing import Any, Final, Self

from celery import Celery
from redis import Redis

from benchmarks.support.workers import Workers
from kronos_client.contract.names import (
    CELERY_PRIORITIES,
    CPU_QUEUE,
    FORECAST_TASK,
    SCHEMA_VERSION,
    Priority,
    result_key,
)
from kronos_client.core.series import series_payload
from kronos_client.redis.queues import list_key
from kronos_model.bars.synthetic import Candles, candles

RESULT_KEY_PREFIX: Final = result_key("").encode()
SUBSCRIBED_WITHIN_S: Final = 5.0
WAIT_S: Final = 600.0
BACKLOG: Final = "backlog"
"""A queue that no worker takes from."""


def instrument(seed: int, lookback: int, horizon: int) -> tuple[Candles, tuple[str, ...]]:
    """The lookback of instrument ``seed`` and the timestamps to forecast."""
    series = candles(seed, lookback + horizon)
    return series[:lookback], series.timestamps[lookback:]


def job_payload(seed: int, lookback: int, horizon: int) -> dict[str, Any]:
    """A job with base64 columns, as our client sends it."""
    past, future = instrument(seed, lookback, horizon)
    columns = past.as_dict()
    return {
        "schema_version": SCHEMA_VERSION,
        "series": [series_payload(columns, "0", future_timestamps=future)],
        "sampling": {"seed": seed, "sample_count": 1},
    }


class Traffic:
    """Sends jobs and records when each outcome reaches this process, in ``time.perf_counter`` seconds.

    It uses little CPU, so that a small machine measures its workers: jobs are built in advance, and one
    thread reads all results as they are published.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._app = Celery(broker=workers.url)
        self._redis = Redis.from_url(workers.url)
        self._arrived = threading.Condition()
        self._outcomes: dict[str, tuple[float, bytes]] = {}

    def __enter__(self) -> Self:
        pubsub = self._redis.pubsub()
        pubsub.psubscribe(**{f"{RESULT_KEY_PREFIX.decode()}*": self._on_result})
        pubsub.get_message(timeout=SUBSCRIBED_WITHIN_S)
        self._listener = pubsub.run_in_thread(sleep_time=0.1, daemon=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.stop()
        self._listener.join()
        self._redis.close()
        self._app.close()

    def send(
        self, payload: dict[str, Any], queue: str = CPU_QUEUE, priority: Priority = "normal", **options: Any
    ) -> str:
        """Enqueue a job, with further options of Celery, and return its id."""
        job_id = str(uuid.uuid4())
        job = payload | {"submitted_at": time.time()}
        options |= {"queue": queue, "priority": CELERY_PRIORITIES[priority], "retry": False}
        options |= {"argsrepr": "()", "kwargsrepr": "{}"}
        self._app.send_task(FORECAST_TASK, kwargs={"job": job}, task_id=job_id, **options)
        return job_id

    def run_backlog(self, payloads: Sequence[dict[str, Any]]) -> tuple[float, float]:
        """Give the workers all jobs at once. Returns seconds to the last outcome, and those of the CPUs."""
        ids = [self.send(payload, BACKLOG) for payload in payloads]
        step, used_s, start = CELERY_PRIORITIES["normal"], self._workers.cpu_s(), time.perf_counter()
        self._redis.rename(list_key(BACKLOG, step), list_key(CPU_QUEUE, step))
        return max(self.await_outcomes(ids)) - start, self._workers.cpu_s() - used_s

    def await_outcomes(self, job_ids: Sequence[str]) -> list[float]:
        """The times at which these outcomes arrived. Raises an error if one failed or is late."""
        with self._arrived:
            if not self._arrived.wait_for(lambda: all(map(self._outcomes.__contains__, job_ids)), WAIT_S):
                raise TimeoutError(f"some of {len(job_ids)} jobs have no outcome after {WAIT_S:g} s")
        for job_id in job_ids:
            meta = json.loads(self._outcomes[job_id][1])
            if meta["status"] != "SUCCESS":
                raise RuntimeError(f"a job failed: {meta['result']}")
        return [self._outcomes[job_id][0] for job_id in job_ids]

    def num_done(self, job_ids: Sequence[str]) -> int:
        """How many of these jobs have an outcome."""
        return sum(job_id in self._outcomes for job_id in job_ids)

    def _on_result(self, message: dict[str, Any]) -> None:
        meta: bytes = message["data"]
        if b'"SUCCESS"' in meta[:40] or b'"FAILURE"' in meta[:40]:
            now = time.perf_counter()
            with self._arrived:
                job_id = message["channel"].removeprefix(RESULT_KEY_PREFIX).decode()
                self._outcomes.setdefault(job_id, (now, meta))
                self._arrived.notify_all()
