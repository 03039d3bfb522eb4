"""How Celery's request of a job goes back to the queue."""

import logging
from typing import Any, Final

from billiard.exceptions import WorkerLostError
from celery.exceptions import Reject
from celery.worker.request import Request
from redis.exceptions import RedisError

from worker.broker import transport

log = logging.getLogger(__name__)

HELD_MARGIN_S: Final = 0.1
"""Seconds to wait after another worker's claim ends."""
REQUEUE_DELAY_S: Final = 1.0
"""Without this delay, a job that cannot run now would come back at once, again and again."""


class HandedBack(Reject):
    """The job goes back to its queue and is delivered again after ``delay_s``. No thread waits meanwhile."""

    def __init__(self, reason: str, requeue: bool = True, delay_s: float = 0.0) -> None:
        super().__init__(reason, requeue)
        # A prefork child's exception is made again in the parent, from these.
        self.args = (reason, requeue, delay_s)
        self.delay_s = delay_s

    def __str__(self) -> str:
        return str(self.args[0])


def without_traceback(record: logging.LogRecord) -> bool:
    """Logging filter: a job that goes back takes one line, which has the reason."""
    if isinstance(record.exc_info, tuple) and isinstance(record.exc_info[1], HandedBack):
        record.exc_info = None
    return True


logging.getLogger("celery.app.trace").addFilter(without_traceback)


class ClaimedRequest(Request):
    """Celery's request (5.7) for a job that runs under a claim."""

    _context: Any

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        """Celery calls it also for rejected jobs, and for jobs whose process died."""
        error = getattr(exc_info.exception, "exc", exc_info.exception)  # billiard wraps a child's exception
        try:
            if isinstance(error, HandedBack) and error.delay_s > 0:
                transport.message_consumer().put_back(self.message.delivery_tag, error.delay_s)
            elif isinstance(error, (WorkerLostError, SystemExit)):
                # Rejected by task_reject_on_worker_lost: another worker may begin the job at once.
                backend: Any = self.task.backend
                backend.lose(self._context)
        except RedisError as failure:
            log.warning("job %s: Redis failed, so the job comes back later: %s", self.id, failure)
        return super().on_failure(exc_info, *args, **kwargs)
