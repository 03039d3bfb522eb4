"""Takes messages off the queues, checks them, and hands them to Celery or buries them. No kombu."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from celery.exceptions import BackendError
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError, ResponseError

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import FEED_APPEND_TASK, MAX_ID_CHARS, STATUS_TASK, TASK_ROLES
from kronos_client.core.stored import encode_failure
from kronos_client.redis.job_store import Ended, Ending
from kronos_client.redis.queues import queue_and_step
from kronos_model.text import escaped
from worker.broker.deliveries import MAX_TAKEN, Asked, Deliveries, Delivery
from worker.broker.messages import BadMessage, TaskMessage, read_message, too_large
from worker.broker.outcomes import Outcomes, store_health
from worker.broker.service_order import NO_ROOM, Rooms, ServiceOrder, cost_of, needs_thread, num_paths_of

log = logging.getLogger(__name__)

TASKS: Final = frozenset((*TASK_ROLES, STATUS_TASK, FEED_APPEND_TASK))
"""The tasks that a message may name. Celery's built-in tasks could run ours without any checks."""
CHECK_INTERVAL_S: Final = 1.0
"""Seconds between checks of an idle worker for messages, in case a notification was lost."""
NO_THREAD_DELAY_S: Final = 1.0
MAX_DELAY_S: Final = 7 * 24 * 3600
"""Seconds that a message may wait for its ETA: its job's record does not live longer."""
MAX_TAKEN_AT_ONCE: Final = 100
"""About so many messages are taken in a row; then the rest of Celery's event loop runs."""


HandOver = Callable[[Delivery, str, int, TaskMessage], object]
"""Called with a delivery, its queue, its priority step and its message.

If it raises a Redis error, the message is delivered again. Any other error buries the message.
"""


class MessageConsumer:
    """Takes one process's messages off its queues.

    ``outcomes`` ends jobs that no task gets.

    Attributes:
        notified: Set if there may be messages; not enough to wake Celery's event loop.
        is_awake: Whether the loop goes on with all jobs before it waits.
    """

    def __init__(self, deliveries: Deliveries, max_bytes: int, outcomes: Outcomes) -> None:
        self.deliveries = deliveries
        self.on_dead: Callable[[], object] = lambda: None
        self._max_bytes = max_bytes
        self._outcomes = outcomes
        self._outcomes.dead_entry = self._dead_entry
        self._delays_s: dict[str, float] = {}  # by delivery tag, until Celery requeues the message
        self.notified = threading.Event()
        self.is_awake = False
        self._next_check = 0.0
        self._order = ServiceOrder()
        self._num_paths: dict[str, int] = {}  # by list, the most of a job in the last take
        self._asked = NO_ROOM  # of the last take
        self._wake: Callable[[], object] = lambda: None

    def notify(self) -> None:
        """Note that there may be messages. May be called from any thread."""
        self.notified.set()
        self._wake()

    def wake(self) -> None:
        """Have Celery's event loop go on with the jobs soon. May be called from any thread."""
        if not self.is_awake:
            self.is_awake = True
            self._wake()

    def wake_by(self, wake: Callable[[], object]) -> None:
        """Set the function that makes Celery's event loop run soon; any thread may call it."""
        self._wake = wake

    def take(
        self,
        queues: Sequence[str],
        rooms_now: Callable[[], Rooms],
        hand_over: HandOver,
        num_held: Callable[[], int] = lambda: 0,
    ) -> None:
        """Take messages of these queues until there are none or there is no room.

        Args:
            queues: The queues.
            rooms_now: Which further jobs there is room for.
            num_held: How many messages this process holds.

        Raises:
            RedisError: The connection to Redis is lost.
        """
        num_taken = 0
        while num_taken < MAX_TAKEN_AT_ONCE:
            rooms = rooms_now()
            is_time = self.notified.is_set() or time.monotonic() >= self._next_check
            if not rooms or not (is_time or rooms.have_more_than(self._asked)):
                return
            self._asked = rooms
            lists = self._order.lists(queues, rooms)
            self.notified.clear()  # before the take: a later message notifies again
            self._next_check = time.monotonic() + CHECK_INTERVAL_S
            try:
                deliveries = self._take(lists, rooms, holds_others=num_held() > 0)
                self._deliver_all(deliveries, rooms_now, hand_over)
            except ResponseError as error:  # it answers: a new connection would change nothing
                store_health.refused(error)
                self.notified.clear()
                return
            if not deliveries:
                if self.notified.is_set():  # since the answer: the connection's data no longer wakes the loop
                    self._wake()
                return
            num_taken += len(deliveries)
        self._wake()

    def _take(self, lists: Mapping[str, float], rooms: Rooms, *, holds_others: bool) -> list[Delivery]:
        """Take as many jobs as there is probably room for, by the largest of the list's last take."""

        def asked(key: str, age_s: float) -> Asked:
            num_paths = self._num_paths.get(key, rooms.num_paths)
            return Asked(age_s, min(MAX_TAKEN, max(1, rooms.num_paths // num_paths)))

        deliveries = self.deliveries.take_all(
            {key: asked(key, age_s) for key, age_s in lists.items()},
            holds_others=holds_others,
            max_bytes=rooms.num_bytes,
        )
        if deliveries:
            self._order.note_waiting(lists, {deliveries[0].source, *deliveries[0].others})
            if deliveries[0].others:  # else it has just looked: Redis names later messages
                self.notified.set()
        elif not self.deliveries.is_full:
            self._order.note_waiting(lists, ())
        return deliveries

    def _deliver_all(
        self, deliveries: Sequence[Delivery], rooms_now: Callable[[], Rooms], hand_over: HandOver
    ) -> None:
        """Hand over all, and only then raise what Redis answered for one of them."""
        failed: RedisError | BackendError | OperationalError | None = None
        most_paths = 1
        for delivery in deliveries:
            try:
                most_paths = max(most_paths, self._deliver(delivery, rooms_now, hand_over))
            except (RedisError, BackendError, OperationalError) as error:
                failed = failed or error
        if deliveries:
            self._num_paths[deliveries[0].source] = most_paths
        if failed is not None:
            raise failed

    def delay(self, delivery_tag: str, delay_s: float) -> None:
        """Set the time after which a message is delivered again once Celery requeues it."""
        self._delays_s[delivery_tag] = delay_s

    def requeue(self, delivery_tag: str) -> None:
        """Have a message delivered again, at Celery's request."""
        self.deliveries.put_back(delivery_tag, self._delays_s.pop(delivery_tag, 0.0))

    def reject(self, delivery_tag: str) -> None:
        """Bury a message that Celery rejects."""
        raw = self.deliveries.held(delivery_tag)
        if raw is not None:
            self._bury(delivery_tag, raw, "", BadMessage("Celery rejected it", _job_id(raw)))

    def bury(self, delivery_tag: str, job_id: str, reason: str) -> None:
        """Move a message to the dead messages, without an answer to its job."""
        log.warning("a message of job %s is moved to kronos:dead: %s", job_id, reason)
        self._outcomes.end(Ending(job_id, "", delivery_tag, self._dead_entry(delivery_tag, job_id, reason)))
        self.on_dead()

    def _dead_entry(self, tag: str, job_id: str, reason: str) -> str:
        raw = self.deliveries.held(tag) or b""
        return self.deliveries.dead_entry(reason, queue="", job_id=job_id, message=raw)

    def _deliver(self, delivery: Delivery, rooms_now: Callable[[], Rooms], hand_over: HandOver) -> int:
        """Hand over a message; returns its job's paths."""
        raw = delivery.message
        queue, step = queue_and_step(delivery.source)
        num_paths = 1
        try:
            if not delivery.is_whole:
                raise too_large(raw, delivery.num_bytes, self._max_bytes)
            message = read_message(raw, TASKS)
            num_paths = num_paths_of(message.arguments)
            if not self._is_due(delivery, message):
                return num_paths
            if num_paths > self._asked.max_small_paths and not rooms_now().have_room(
                delivery.source, num_paths
            ):
                self.deliveries.move_to_large(delivery.tag)
                return num_paths
            if needs_thread(message.arguments) and not rooms_now().has_thread:
                self.deliveries.put_back(delivery.tag, NO_THREAD_DELAY_S)
                return num_paths
            cost = cost_of(message.payload["headers"]["task"], message.arguments)
            self._order.note_taken(delivery.source, cost)
            hand_over(delivery, queue, step, message)
        except (RedisError, BackendError, OperationalError):
            raise  # the message is delivered again
        except BadMessage as error:
            self._bury(delivery.tag, raw, queue, error)
        except Exception:  # a Celery error must not end the worker or repeat
            log.exception("Celery cannot read a message")
            self._bury(delivery.tag, raw, queue, BadMessage("Celery cannot read it", _job_id(raw)))
        return num_paths

    def _is_due(self, delivery: Delivery, message: TaskMessage) -> bool:
        """Whether the message is due by Redis's clock; if not, it waits or has expired."""
        if message.eta is None and message.expires is None:
            return True
        now = self.deliveries.now_s()
        if message.expires is not None and message.expires <= now:
            late = "the message expired before a worker took it; add workers"
            job_id, task = message.payload["headers"]["id"], message.payload["headers"]["task"]
            if self._end(job_id, delivery.tag, JobError(ErrorCode.DEADLINE, late), task=task) == "held":
                # A worker has the job, perhaps a dead one: try again when its claim ends.
                self.deliveries.put_back(delivery.tag, self.deliveries.timeout_s)
            return False
        delay_s = 0.0 if message.eta is None else message.eta - now
        if delay_s > MAX_DELAY_S:
            raise BadMessage(f"its eta is more than {MAX_DELAY_S} s ahead", message.payload["headers"]["id"])
        if delay_s > 0:  # Celery's timer would hold any number of such messages here
            self.deliveries.put_back(delivery.tag, delay_s)
        return delay_s <= 0

    def _bury(self, tag: str, raw: bytes, queue: str, error: BadMessage) -> None:
        printable_id = None if error.job_id is None else escaped(error.job_id, MAX_ID_CHARS)
        log.warning("an unreadable message (id %r) is moved to kronos:dead: %s", printable_id, error)
        entry = self.deliveries.dead_entry(str(error), queue=queue, job_id=printable_id, message=raw)
        if error.job_id is None:
            self._outcomes.end(Ending("", "", tag, entry))
        else:
            text = f"{error}; the contract (docs/reference/contract.md) says how to send a job"
            self._end(error.job_id, tag, JobError(ErrorCode.BAD_MESSAGE, text), entry)
        self.on_dead()

    def _end(self, job_id: str, tag: str, error: JobError, entry: str = "", task: str = "") -> Ended:
        ending = Ending(job_id, encode_failure(job_id, error), tag, entry)
        return self._outcomes.end(ending, task=task, outcome=error)


def _job_id(raw: bytes) -> str | None:
    try:
        return str(read_message(raw, TASKS).payload["headers"]["id"])
    except BadMessage as error:
        return error.job_id


class Rounds:
    """Calls of the rounds of Celery's event loop, after messages were taken and before it waits."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], object]] = []
        self.once: list[Callable[[], object]] = []
        """Made once, by the next round of the loop itself: then it has subscribed to control commands."""
        self._last = 0.0

    def run(self, *, unless_within_s: float = 0.0) -> None:
        """Make the calls, unless the last round is not longer ago than this."""
        if time.monotonic() - self._last < unless_within_s:
            return
        while self.once and unless_within_s == 0.0:
            self.once.pop()()
        for call in self.calls:
            call()
        self._last = time.monotonic()


rounds: Final = Rounds()
