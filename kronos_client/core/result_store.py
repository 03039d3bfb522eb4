"""ResultStore: reads jobs' stored states, and receives new ones as they are published; RedisResultStore."""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

from redis import Redis
from redis.asyncio import BlockingConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff
from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as NoAnswer

from kronos_client.contract import states
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import job_key, result_key
from kronos_client.core.stored import (
    FORGOTTEN,
    LATE,
    LOST,
    NOTHING,
    Stored,
    encode_failure,
    lost,
    read_stored,
)
from kronos_client.redis.connection import ANSWER_TIMEOUT_S, pool_options, read_bytes
from kronos_client.redis.job_store import Ending, JobRecord, JobStore
from kronos_client.redis.queues import TAKEN_KEY, queue_and_step
from kronos_client.redis.routing import live_workers
from kronos_client.redis.scripts import read_script
from kronos_client.settings import ClientSettings

log = logging.getLogger(__name__)

MAX_SHORT_BYTES: Final = 2**16
"""A longer state is read by another connection: Redis closes one that subscribes with 32 MB unsent."""
RECONNECT_S: Final = 0.5
SEEN_FOR_S: Final = 2.0
"""Seconds between the reads by which a job is known to be lost."""
IS_REMOVED: Final = read_script("is_removed")

ANOTHER_APPS: Final = {b"": b""}
"""The record of a job whose key another app wrote: its worker ends the job."""
PUSHED: Final = object()
"""What is read in place of a published state: it answers no command."""

OnState = Callable[[str, Stored], object]
"""Called with a job's id and its published state."""


class ResultStore(Protocol):
    """The stored states of jobs, in Redis or in a test's memory. Lives on one event loop.

    ``read`` and ``forget`` raise RedisError if Redis does not answer.

    Attributes:
        awaited: The ids of the jobs whose states are to be received, from the next ``read`` on.
    """

    awaited: set[str]

    def start(self, on_state: OnState) -> None:
        """Call ``on_state`` with each state published from now on. A second call does nothing."""

    async def read(self, job_ids: Sequence[str]) -> list[Stored]:
        """Read the stored state of each job."""

    async def forget(self, job_id: str, *, has_result: bool = False) -> bool:
        """Delete a result; returns whether there was one. ``has_result`` skips checking that there is one."""

    async def pause(self, seconds: float) -> None:
        """Sleep, for a shorter time if the connection is lost."""

    async def close(self) -> None:
        """Close the connections."""


class _Sent:
    """Commands that were sent together, and their answers so far. Each has one."""

    def __init__(self, num_commands: int) -> None:
        self.answers: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._num_commands = num_commands
        self._read: list[Any] = []

    def take(self, answer: Any) -> bool:
        """Take an answer; returns whether it was the last."""
        self._read.append(answer)
        is_complete = len(self._read) == self._num_commands
        if is_complete and not self.answers.done():
            self.answers.set_result(self._read)
        return is_complete


class RedisResultStore:
    """The ``ResultStore`` in Redis, over one connection. It misses what is published while that is lost.

    Args:
        redis: For long results and for reading which workers live, on a thread.
    """

    def __init__(self, settings: ClientSettings, redis: Redis) -> None:
        options = pool_options(settings.redis_url.get_secret_value(), max_connections=1, is_async=True)
        pool: Any = BlockingConnectionPool.from_url(**options, retry=Retry(ConstantBackoff(0.2), 1))
        self.awaited: set[str] = set()
        self._connection: Any = pool.make_connection()
        self._redis = redis
        self._result_ttl_s = settings.result_ttl_s
        self._on_state: OnState = lambda *_: None
        self._subscribed: set[str] = set()
        self._sent: deque[_Sent] = deque()
        self._sending = asyncio.Lock()
        self._receiver: asyncio.Task[None] | None = None
        self._suspects: dict[tuple[str, str], float] = {}

    def start(self, on_state: OnState) -> None:
        self._on_state = on_state

    async def pause(self, seconds: float) -> None:
        if self._receiver is not None:
            await asyncio.wait([self._receiver], timeout=seconds)
        if self._receiver is None or self._receiver.done():
            await asyncio.sleep(min(RECONNECT_S, seconds))

    async def close(self) -> None:
        if self._receiver is not None:
            self._receiver.cancel()
            await asyncio.wait([self._receiver])

    async def read(self, job_ids: Sequence[str]) -> list[Stored]:
        commands: list[Sequence[Any]] = []
        for job_id in job_ids:  # the record first: if it has ended, the result is there by now, or expired
            get_state = "GETRANGE", result_key(job_id), 0, MAX_SHORT_BYTES - 1
            commands += [("HGETALL", job_key(job_id)), get_state]
        try:
            *answers, (seconds, microseconds) = await self._ask(*commands, ("TIME",))
        except RedisError:
            self._suspects.clear()  # Redis may not answer workers either
            raise
        now_s = int(seconds) + int(microseconds) / 1e6
        records, texts = dict[str, JobRecord](), dict[str, Any]()
        for job_id, record, text in zip(job_ids, answers[::2], answers[1::2], strict=True):
            records[job_id] = JobRecord(record if isinstance(record, dict) else ANOTHER_APPS)
            texts[job_id] = text if isinstance(text, bytes) else b""
        late = [job_id for job_id, record in records.items() if record.is_late(now_s)]
        if late:
            await asyncio.to_thread(self._end_late, late)
        long = [job_id for job_id, text in texts.items() if len(text) == MAX_SHORT_BYTES or job_id in late]
        if long:
            whole = await asyncio.to_thread(read_bytes, self._redis, "MGET", *map(result_key, long))
            texts |= {job_id: text or b"" for job_id, text in zip(long, whole, strict=True)}
        lost_ids = await self._lost(records, now_s)
        found = []
        for job_id in job_ids:
            text = texts[job_id]
            stored = read_stored(job_id, text) if text else self._absent(records[job_id], now_s)
            is_lost = job_id in lost_ids and not stored.has_ended
            found.append(stored._replace(absence=lost(job_id)) if is_lost else stored)
        return found

    async def forget(self, job_id: str, *, has_result: bool = False) -> bool:
        """Replace the result by a short error, so that the job is not computed again.

        The error expires when the result would have. A job that goes on or failed stays as it is.
        """
        key = result_key(job_id)
        if not has_result:
            (text,) = await self._ask(("GETRANGE", key, 0, MAX_SHORT_BYTES - 1))
            if not text or read_stored(job_id, text, is_cut=True).status != states.SUCCESS:
                return False
        # XX: the first outcome stands. The key still holds the result, or has expired.
        (answer,) = await self._ask(("SET", key, encode_failure(job_id, FORGOTTEN), "XX", "KEEPTTL"))
        return answer is not None

    def _end_late(self, job_ids: Sequence[str]) -> None:
        """End jobs that missed their deadlines before a worker began them; one that has meanwhile goes on."""
        late = [Ending(job_id, encode_failure(job_id, LATE)) for job_id in job_ids]
        try:
            JobStore(self._redis, self._result_ttl_s).end(late)
        except RedisError as error:  # the next read tries again
            log.debug("jobs that missed their deadlines could not be ended: %s", error)

    def _absent(self, record: JobRecord, now_s: float) -> Stored:
        if not record.fields:
            return Stored(absence=LOST)
        if now_s - (record.number("ended_at") or now_s) <= self._result_ttl_s:
            return Stored(queue=queue_and_step(record.list or "")[0]) if record.at == "list" else NOTHING
        kept = f"the job ended, but its result was kept for only {self._result_ttl_s} s"
        remedy = "submit it again, or raise KRONOS_RESULT_TTL_S"
        return Stored(absence=JobError(ErrorCode.RESULT_EXPIRED, f"{kept}; {remedy}"))

    async def _lost(self, records: Mapping[str, JobRecord], now_s: float) -> set[str]:
        """The ids of jobs that no worker will get; some may have their outcome.

        A job is lost if two reads find its message gone, and none in between finds it. They are
        ``SEEN_FOR_S`` apart, and for a message that a delivery holds also its timeout: after an outage of
        Redis or of all workers, they need that long to renew or put back what was held.
        """
        removed = await self._removed(records, now_s - SEEN_FOR_S)
        gone = {
            (job_id, record.fields["at"]): record
            for job_id, record in records.items()
            if record.is_gone(now_s) or job_id in removed
        }
        if gone:
            workers = await asyncio.to_thread(live_workers, self._redis)
            gone = {seen: record for seen, record in gone.items() if record.is_gone_for(workers)}
        now = time.monotonic()
        since = {seen: at for seen, at in self._suspects.items() if seen in gone or seen[0] not in records}
        self._suspects = dict.fromkeys(gone, now) | since
        return {
            seen[0]
            for seen, record in gone.items()
            if now - self._suspects[seen] >= max(SEEN_FOR_S, record.timeout_s)
        }

    async def _removed(self, records: Mapping[str, JobRecord], before_s: float) -> set[str]:
        """The ids of jobs older than that whose messages another program removed from their lists."""
        waiting = {
            job_id: record
            for job_id, record in records.items()
            if record.at == "list"
            and "ended_at" not in record.fields
            and (record.number("admitted_at") or 0) < before_s
        }
        lists = list({record.list: None for record in waiting.values()})
        commands = [*(("LLEN", name) for name in lists), ("HMGET", TAKEN_KEY, *lists)]
        try:
            *lengths, num_taken = await self._ask(*commands) if lists else [[]]
            num_taken = num_taken if isinstance(num_taken, list) else [0] * len(lists)
            reached = {
                name: math.inf if length == 0 else int(number or 0)
                for name, length, number in zip(lists, lengths, num_taken, strict=True)
            }
            asked = {
                job_id: record
                for job_id, record in waiting.items()
                if reached[record.list] > (record.number("place") or 0)
            }
            questions = [
                ("EVAL", IS_REMOVED, 3, job_key(job_id), record.list, TAKEN_KEY, record.fields["at"])
                for job_id, record in asked.items()
            ]
            answers = await self._ask(*questions) if questions else []
        except ResponseError:  # this user may not ask
            return set()
        return {job_id for job_id, answer in zip(asked, answers, strict=True) if answer == 1}

    async def _ask(self, *commands: Sequence[Any]) -> list[Any]:
        """The answers of commands that are sent together, with what changed in ``awaited``.

        They are sent again if the connection is lost: the server may have closed it meanwhile. The error of a
        key of another type stands in place of its answer.
        """
        try:
            answers = await self._ask_once(commands)
        except (NoConnection, NoAnswer, OSError):
            answers = await self._ask_once(commands)
        for answer in answers:
            if isinstance(answer, Exception) and not str(answer).startswith("WRONGTYPE"):
                raise answer
        return answers

    async def _ask_once(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        async with self._sending:  # two at once would connect twice
            await self._connect()
            # One channel in each: a subscription is answered for each channel.
            changes = [("SUBSCRIBE", result_key(job_id)) for job_id in self.awaited - self._subscribed]
            changes += [("UNSUBSCRIBE", result_key(job_id)) for job_id in self._subscribed - self.awaited]
            self._subscribed = set(self.awaited)
            sent = _Sent(len(changes) + len(commands))
            self._sent.append(sent)
            packed = self._connection.pack_commands([*changes, *commands])
            try:
                await self._connection.send_packed_command(b"".join(packed), check_health=False)
            except (AttributeError, TypeError):  # redis-py's, if the connection is lost before it writes
                raise NoConnection("the connection was closed") from None
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                answers = await sent.answers
        except TimeoutError:
            if sent in self._sent:
                await self._connection.disconnect(nowait=True)
            raise NoAnswer("Redis does not answer") from None
        for answer in answers[: len(changes)]:
            if isinstance(answer, Exception):
                log.debug("Redis refuses a subscription: %s", answer)
                self._subscribed.clear()  # tried again with the next read
        return answers[len(changes) :]

    async def _connect(self) -> None:
        """Connect, unless the connection is there."""
        if self._receiver is not None:
            if self._connection.is_connected:
                return
            await self.close()
        await self._connection.connect()
        self._connection._parser.handle_push_response = self._on_push
        self._subscribed = set()
        self._receiver = asyncio.create_task(self._receive())

    async def _receive(self) -> None:
        """Receive published states and answers until the connection is lost."""
        try:
            while True:
                try:
                    answer = await self._connection.read_response(
                        timeout=math.inf, disconnect_on_error=False, push_request=True
                    )
                except ResponseError as error:
                    answer = error
                if answer is not PUSHED and self._sent[0].take(answer):
                    self._sent.popleft()
        except (RedisError, OSError) as error:
            log.debug("Redis does not answer: %s", error)
        finally:
            for sent in self._sent:
                if not sent.answers.done():
                    sent.answers.set_exception(NoConnection("the connection was closed"))
                    sent.answers.exception()  # if sending failed nobody awaits it, and asyncio would log that
            self._sent.clear()
            with suppress(RuntimeError):  # collected after its event loop, where nobody had closed the client
                await self._connection.disconnect(nowait=True)

    async def _on_push(self, push: list[Any]) -> object:
        """Called by redis-py's parser; returns what ``read_response`` does."""
        match push:
            case [b"message", channel, data]:
                job_id = channel.decode().removeprefix(result_key(""))
                self._on_state(job_id, read_stored(job_id, data))
            case [b"subscribe" | b"unsubscribe", *_]:
                return push
        return PUSHED
