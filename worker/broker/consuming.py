"""What a worker takes off its queues: looked through, handed over to Celery, or buried. No kombu."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from celery.exceptions import BackendError
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError, ResponseError

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import FINETUNE_TASK, FORECAST_TASK, STATUS_TASK
from kronos_client.redis.queues import PRIORITY_STEPS, list_key, queue_and_step
from worker.broker.deliveries import Deliveries, Delivery
from worker.broker.messages import BadMessage, TaskMessage, read_message, too_large

log = logging.getLogger(__name__)

TASKS: Final = frozenset((FORECAST_TASK, FINETUNE_TASK, STATUS_TASK))
"""That a message may name; Celery's own could run ours past all checks."""

LOOK_INTERVAL_S: Final = 1.0
"""How often an idle worker looks for messages without having been told of any."""

MAX_DELAY_S: Final = 7 * 24 * 3600
"""For how long a message may wait for its ETA: the record of its job lives no longer."""

MAX_TAKEN_AT_ONCE: Final = 100
"""Messages between which nothing else of Celery's event loop runs."""


class MessageConsumer:
    """What one process takes off its queues, and what becomes of it.

    Args:
        max_bytes: of a message.
        answer: called with the id of a job and the error that it ends with; False where it does not end by
            that, since a worker has it.
    """

    def __init__(
        self, deliveries: Deliveries, max_bytes: int, answer: Callable[[str, JobError], bool]
    ) -> None:
        self.deliveries = deliveries
        self.on_dead: Callable[[], object] = lambda: None
        self._max_bytes = max_bytes
        self._answer = answer
        self._put_back: set[str] = set()
        self._is_rung = threading.Event()
        self._next_look = 0.0
        self._wake: Callable[[], object] = lambda: None

    def ring(self) -> None:
        """There may be messages. May be called from any thread."""
        self._is_rung.set()
        self._wake()

    def wake_by(self, wake: Callable[[], object]) -> None:
        """Call this to have messages taken soon, from any thread."""
        self._wake = wake

    def take(
        self,
        queues: Sequence[str],
        has_room: Callable[[], bool],
        hand_over: Callable[[Delivery, str, int, TaskMessage], object],
    ) -> None:
        """Take messages while there are some and there is room for them.

        ``hand_over`` is given queue and priority of each; what it raises ends the message, or leaves it to be
        delivered again where Redis is at fault. Raises the errors of a connection to Redis.
        """
        if not self._is_rung.is_set() and time.monotonic() < self._next_look:
            return
        lists = [list_key(queue, step) for step in PRIORITY_STEPS for queue in queues]
        for _ in range(MAX_TAKEN_AT_ONCE):
            if not has_room():
                return
            self._is_rung.clear()  # before looking: what comes after that rings again
            self._next_look = time.monotonic() + LOOK_INTERVAL_S
            try:
                delivery = self.deliveries.take(lists)
                if delivery is None:
                    return
                self._is_rung.set()
                self._deliver(delivery, hand_over)
            except ResponseError as error:  # Redis lives and refuses: it is full, or a key is misused
                log.error("Redis refuses what taking a job needs, trying again: %s", error)
                self._is_rung.clear()
                return
        self._wake()

    def put_back(self, delivery_tag: str, delay_s: float) -> None:
        """Have a message delivered again after this time. Celery may then reject it, to have it requeued."""
        self.deliveries.put_back(delivery_tag, delay_s)
        self._put_back.add(delivery_tag)

    def requeue(self, delivery_tag: str) -> None:
        """As Celery asks for it."""
        if delivery_tag in self._put_back:
            self._put_back.discard(delivery_tag)
        else:
            self.deliveries.put_back(delivery_tag)

    def reject(self, delivery_tag: str) -> None:
        """Celery makes nothing of it."""
        raw = self.deliveries.held(delivery_tag)
        if raw is not None:
            self._bury(delivery_tag, raw, "", BadMessage("Celery rejected it", _job_id(raw)))

    def _deliver(
        self, delivery: Delivery, hand_over: Callable[[Delivery, str, int, TaskMessage], object]
    ) -> None:
        raw = delivery.message
        queue, step = queue_and_step(delivery.source)
        try:
            if not delivery.is_whole:
                raise too_large(raw, delivery.num_bytes, self._max_bytes)
            message = read_message(raw, TASKS)
            if self._is_of_this_time(delivery, message):
                hand_over(delivery, queue, step, message)
        except (RedisError, BackendError, OperationalError):
            raise  # and it comes again
        except BadMessage as error:
            self._bury(delivery.tag, raw, queue, error)
        except Exception:  # what Celery stumbles over must not end the worker, nor come again
            log.exception("Celery stumbled over a message")
            self._bury(delivery.tag, raw, queue, BadMessage("Celery cannot read it", _job_id(raw)))

    def _is_of_this_time(self, delivery: Delivery, message: TaskMessage) -> bool:
        """Whether it is to be handed over now; by Redis's clock. Else it waits there, or has expired."""
        if message.eta is None and message.expires is None:
            return True
        now = self.deliveries.now_s()
        if message.expires is not None and message.expires <= now:
            late = "the message expired before a worker took it; add workers"
            if self._answer(message.payload["headers"]["id"], JobError(ErrorCode.DEADLINE, late)):
                self.deliveries.forget(delivery.tag)
            else:  # its worker may be gone: then the job ends when its lease has
                self.deliveries.put_back(delivery.tag, self.deliveries.timeout_s)
            return False
        delay_s = 0.0 if message.eta is None else message.eta - now
        if delay_s > MAX_DELAY_S:
            raise BadMessage(f"its eta is more than {MAX_DELAY_S} s ahead", message.payload["headers"]["id"])
        if delay_s > 0:  # Celery's timer would hold such messages here, without bound
            self.deliveries.put_back(delivery.tag, delay_s)
        return delay_s <= 0

    def _bury(self, tag: str, raw: bytes, queue: str, error: BadMessage) -> None:
        """First the answer: a worker that is killed in between leaves the message to the next."""
        log.warning("a message is moved to the dead ones: %s (id %r)", error.reason, error.job_id)
        if error.job_id is not None:
            remedy = "see the contract for how a job is sent"
            self._answer(error.job_id, JobError(ErrorCode.BAD_MESSAGE, f"{error.reason}; {remedy}"))
        self.deliveries.bury(tag, error.reason, queue=queue, job_id=error.job_id, message=raw)
        self.on_dead()


def _job_id(raw: bytes) -> str | None:
    try:
        job_id: Any = read_message(raw, TASKS).payload["headers"]["id"]
    except BadMessage as error:
        return error.job_id
    return str(job_id)
