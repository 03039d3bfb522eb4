"""Jobs as any Celery client sends them, and the moments at which their results arrive."""

import json
import threading
import time
import uuid
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Self

from redis import Redis

from kronos_client.celery_app import make_app
from kronos_client.contract.names import CELERY_PRIORITIES, CPU_QUEUE, FORECAST_TASK, SCHEMA_VERSION
from kronos_client.core.series import series_payload
from kronos_client.settings import ClientSettings
from kronos_model.bars.synthetic import Candles, candles

RESULT_KEY_PREFIX: Final = b"celery-task-meta-"
SUBSCRIBED_WITHIN_S: Final = 5.0
BACKLOG: Final = "backlog"
"""A queue that no worker takes from."""


def instrument(seed: int, lookback: int, horizon: int) -> tuple[Candles, tuple[str, ...]]:
    """The lookback of instrument ``seed`` and the timestamps to forecast."""
    series = candles(seed, lookback + horizon)
    return series[:lookback], series.timestamps[lookback:]


def job_payload(seed: int, lookback: int, horizon: int) -> dict[str, Any]:
    """A job of one series as our client would send it, its columns as base64."""
    past, future = instrument(seed, lookback, horizon)
    return {
        "schema_version": SCHEMA_VERSION,
        "series": [series_payload(past.as_dict(), "0", future_timestamps=future)],
        "sampling": {"seed": seed},
    }


class Traffic:
    """Sends jobs and notes when each one's outcome reached this process. Moments are ``time.perf_counter``'s.

    The cheapest client there can be, so that on a small machine it is the workers that are measured: jobs are
    made beforehand, and one listener takes all results as they are published.
    """

    def __init__(self, url: str) -> None:
        self._app = make_app(ClientSettings.load().with_redis_url(url))
        self._redis = Redis.from_url(url)
        self._pubsub = self._redis.pubsub(ignore_subscribe_messages=False)
        self._arrived = threading.Condition()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._is_over = False
        self.outcomes: dict[str, tuple[float, bytes]] = {}

    def __enter__(self) -> Self:
        self._pubsub.psubscribe(RESULT_KEY_PREFIX + b"*")
        self._pubsub.get_message(timeout=SUBSCRIBED_WITHIN_S)
        self._listener.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True
        self._listener.join()
        self._pubsub.close()
        self._redis.close()
        self._app.close()

    def send(self, payload: dict[str, Any], queue: str = CPU_QUEUE) -> str:
        """Enqueue a job; returns its id."""
        job_id = str(uuid.uuid4())
        self._app.send_task(
            FORECAST_TASK,
            kwargs={"job": payload | {"submitted_at": time.time()}},
            task_id=job_id,
            queue=queue,
            priority=CELERY_PRIORITIES["normal"],
            argsrepr="()",
            kwargsrepr="{}",
            retry=False,
        )
        return job_id

    def release_backlog(self) -> float:
        """Give the workers all jobs that were sent to ``BACKLOG`` at once; returns the moment."""
        moment = time.perf_counter()
        self._redis.rename(_list_key(BACKLOG), _list_key(CPU_QUEUE))
        return moment

    def await_outcomes(self, job_ids: Sequence[str], timeout_s: float) -> list[float]:
        """The moments at which the outcomes of these arrived; raises where one failed or is late."""
        with self._arrived:
            if not self._arrived.wait_for(lambda: all(one in self.outcomes for one in job_ids), timeout_s):
                missing = sum(one not in self.outcomes for one in job_ids)
                raise TimeoutError(f"{missing} of {len(job_ids)} jobs have no outcome after {timeout_s} s")
        for one in job_ids:
            meta = json.loads(self.outcomes[one][1])
            if meta["status"] != "SUCCESS":
                raise RuntimeError(f"a job failed: {meta['result']}")
        return [self.outcomes[one][0] for one in job_ids]

    def _listen(self) -> None:
        while not self._is_over:
            message = self._pubsub.get_message(timeout=0.1)
            if message is None or message["type"] != "pmessage":
                continue
            meta: bytes = message["data"]
            if b'"SUCCESS"' in meta[:40] or b'"FAILURE"' in meta[:40]:
                now = time.perf_counter()
                with self._arrived:
                    job_id = message["channel"].removeprefix(RESULT_KEY_PREFIX).decode()
                    self.outcomes.setdefault(job_id, (now, meta))
                    self._arrived.notify_all()


def _list_key(queue: str) -> str:
    """Where kombu keeps a queue's messages of normal priority."""
    return f"{queue}\x06\x16{CELERY_PRIORITIES['normal']}"
