"""A job's record in Redis: its content's fingerprint, first receipt, holder and end.

Each step is one atomic script.

A job under way has a claim. Only the claim's holder may work on the job and store its outcome. The record
names the holder by the tag of its delivery. The claim lives as long as that delivery is listed as taken. A
claim that ended without a release was lost with its holder; the record counts these.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar

from pydantic_core import from_json
from redis import Redis
from redis.exceptions import ResponseError

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import DEAD_KEY, cancel_key, job_key, result_key
from kronos_client.redis.connection import run_script
from kronos_client.redis.queues import MAX_WAIT_S, ROLE_QUEUES, DeliveryKeys, role_of
from kronos_client.redis.routing import ANNOUNCEMENT_TTL_S
from kronos_client.redis.scripts import read_script

if TYPE_CHECKING:
    from kronos_client.contract.worker_status import WorkerStatus


log = logging.getLogger(__name__)
MAX_HOW_CHARS: Final = 200
"""Longest text that says how an attempt ended."""
LOST_BEFORE_SUSPECT: Final = 2
"""After so many attempts that ended with their process, the job is computed alone."""
SCRIPTS: Final = ("begin", "state", "end", "renew_claims", "release", "count", "cancel")

Job = TypeVar("Job")
Answer = TypeVar("Answer")
OnRepeated = Callable[[str], object]
"""Called with the tag of a delivery."""


@dataclass(frozen=True)
class Receipt:
    """A job's record as a worker begins it. Times are Redis's clock, Unix time in seconds.

    Attributes:
        held_s: Seconds until another worker's claim ends unless renewed; 0 if the job may begin.
        worked_s: Seconds that earlier claims lasted.
        lost: Attempts that ended with their process, alone in it or not.
    """

    now: float
    received_at: float
    is_cancelled: bool
    held_s: float = 0.0
    worked_s: float = 0.0
    lost: int = 0

    @property
    def is_suspect(self) -> bool:
        """Whether the job may have killed its processes, so that it must be alone in its next one."""
        return self.lost >= LOST_BEFORE_SUSPECT

    def waited_s(self, submitted_at: float | None) -> float:
        """Seconds since ``submitted_at``; if that is None, since the job's first receipt."""
        return self.now - (self.received_at if submitted_at is None else submitted_at)


Begun = Receipt | Literal["ended", "conflict"]
"""What a worker gets that begins a job: see ``JobStore.begin_all``."""


class Beginning(NamedTuple):
    """A job that a worker begins.

    Attributes:
        state: The encoded state.
        tag: Of the delivery that gets the claim.
        content: The job's fingerprint, to find that a job with this id and other content is under way; empty
            to skip this check.
    """

    job_id: str
    state: str | bytes
    tag: str
    content: str = ""


@dataclass(frozen=True)
class Ending:
    """How a job ends, or what its state is.

    Attributes:
        outcome: The encoded outcome; empty to remove only the message of a job that has its outcome.
        tag: Of the delivery whose message is removed; empty in clients, which have none.
        dead_entry: What the list of dead messages gets, if the message goes there.
    """

    job_id: str
    outcome: str | bytes
    tag: str = ""
    dead_entry: str = ""


Ended = Literal["stored", "ended", "repeated", "held", "open"]
"""What became of an ``Ending``: see ``end.lua``."""


class NotStored(ResponseError):
    """Redis's error for one job of several in a call: what it has of message and claim stays."""


class JobStore:
    """Reads and writes jobs' records and states; the records of ended jobs live twice as long as results.

    Args:
        result_ttl_s: Seconds that states and results live.
        delivery_keys: Those of the workers of one role; None in a client.
        on_repeated: Called with the tag of a delivery whose job another process has meanwhile.
        max_dead: The most messages that the list of dead messages keeps.
    """

    def __init__(
        self,
        redis: Redis,
        result_ttl_s: int,
        delivery_keys: DeliveryKeys | None = None,
        on_repeated: OnRepeated = lambda tag: None,
        max_dead: int = 1000,
    ) -> None:
        self._redis = redis
        self._delivery_keys = delivery_keys or ()
        self._on_repeated = on_repeated
        self._result_ttl_s = result_ttl_s
        self._max_dead = max_dead
        self._run = {name: redis.register_script(read_script(name)) for name in SCRIPTS}

    def begin_all(
        self, beginnings: Sequence[Beginning], timeout_s: float, worker: str
    ) -> list[Begun | JobError | NotStored]:
        """Take the claims of jobs, then store and publish their states, in one call.

        Nothing is stored of a job while another has its claim.

        Args:
            timeout_s: Seconds until a delivery is put back if it is not renewed.
            worker: The worker's name, for the records.

        Returns:
            For each job its record; ``ended`` if it has its outcome, ``conflict`` if another with its id is
            under way; JobError INTERNAL if an app wrote another type of key where its record should be, or
            the job's own error if a client ended it while it waited: to end it so again only counts it.
        """
        keys = [*self._delivery_keys, *(key for job in beginnings for key in _keys_of(job.job_id))]
        args: list[Any] = [self._result_ttl_s, MAX_WAIT_S, timeout_s, worker]
        args += [part for job in beginnings for part in (job.job_id, job.tag, job.state, job.content)]
        try:
            answers = self._run["begin"](keys=keys, args=args)
        except ResponseError as error:
            return _each_alone(lambda job: self.begin_all([job], timeout_s, worker), beginnings, error)
        return [_begun(job.job_id, answer) for job, answer in zip(beginnings, answers, strict=True)]

    def renew(
        self,
        claims: Mapping[str, str],
        others: Iterable[str] = (),
        held: Container[str] | None = None,
        *,
        timeout_s: float,
    ) -> dict[str, bool]:
        """Restart the timeout of deliveries, which renews their claims.

        Args:
            claims: Job ids by the tags of the deliveries that have claims, or will soon.
            timeout_s: Of deliveries that have none of their own.
            held: Tags of the claims that are known to be granted, if not all are. Only these can be lost.

        Returns:
            By tag, whether each claim lives. False if another has it, or the job ended otherwise.
        """
        tags = [*claims, *others]
        if not tags:
            return {}
        of_jobs = [key for job_id in claims.values() for key in (job_key(job_id), result_key(job_id))]
        keys = [*self._delivery_keys, *of_jobs]
        answers = self._run["renew_claims"](keys=keys, args=[MAX_WAIT_S, timeout_s, *tags])
        for tag, answer in zip(claims, answers, strict=True):
            if answer < 0 and (held is None or tag in held):
                self._on_repeated(tag)
        return {tag: answer > 0 for tag, answer in zip(claims, answers, strict=True)}

    def release(self, job_id: str, tag: str, how: str = "", *, is_lost: bool = False) -> None:
        """End a delivery's claim, so that the job may begin again at once, unless another has the claim.

        Args:
            how: How the attempt ended, for the job's record.
            is_lost: Whether to count the attempt as ended with its process, or the engine in it.
        """
        line = " ".join(how.split())[:MAX_HOW_CHARS] or "handed back"
        self._run["release"](keys=[job_key(job_id)], args=[tag, line, "lost" if is_lost else ""])

    def count(self, job_id: str, tag: str, what: Literal["lost_alone", "put_off"]) -> int | None:
        """Count an attempt that ended with a process of its own, or found none.

        Returns the number so far; None if another has the claim.
        """
        answer: int | None = self._run["count"](keys=[job_key(job_id)], args=[tag, what])
        return answer

    def store_state(self, job_id: str, state: str | bytes, tag: str = "") -> bool:
        """As ``store_states``, of one job."""
        return self.store_states([Ending(job_id, state, tag)])[0]

    def store_states(self, states: Sequence[Ending]) -> list[bool]:
        """Store and publish states that are not outcomes; returns whether each was stored.

        It is dropped if the job has its outcome, or if the tag is not that of the claim.
        """
        keys = [key for state in states for key in (result_key(state.job_id), job_key(state.job_id))]
        args = [part for state in states for part in (state.outcome, state.tag)]
        answers = self._run["state"](keys=keys, args=[self._result_ttl_s, *args])
        for state, answer in zip(states, answers, strict=True):
            if answer < 0:
                self._on_repeated(state.tag)
        return [answer > 0 for answer in answers]

    def end(self, endings: Sequence[Ending]) -> list[Ended | NotStored]:
        """Store and publish outcomes, and remove the messages and claims, in one call.

        Returns:
            What became of each. A job's first outcome stands.
        """
        keys = [key for ending in endings for key in _keys_of(ending.job_id)]
        keys += [*self._delivery_keys, DEAD_KEY] if self._delivery_keys else []
        args = [part for ending in endings for part in (ending.tag, ending.outcome, ending.dead_entry)]
        limits = self._result_ttl_s, 2 * self._result_ttl_s, self._max_dead
        try:
            answers = run_script(self._redis, self._run["end"], keys, [*limits, *args])
        except ResponseError as error:
            return _each_alone(lambda ending: self.end([ending]), endings, error)
        ended: list[Ended | NotStored] = []
        for ending, answer in zip(endings, map(_text, answers), strict=True):
            if answer in ("repeated", "held"):
                self._on_repeated(ending.tag)
            ended.append(NotStored(answer.removeprefix("error ")) if answer.startswith("error ") else answer)
        return ended

    def request_cancel(self, job_id: str) -> bool:
        """Request that a job is cancelled, whether it waits or runs; returns False if it has ended."""
        return bool(self._run["cancel"](keys=[job_key(job_id), cancel_key(job_id)], args=[MAX_WAIT_S]))

    def is_cancelled(self, job_id: str) -> bool:
        """Whether the job's cancellation was requested."""
        return self.cancelled([job_id]) == {job_id}

    def cancelled(self, job_ids: Sequence[str]) -> set[str]:
        """Those of these jobs whose cancellation was requested."""
        found: Any = self._redis.mget([cancel_key(job_id) for job_id in job_ids]) if job_ids else ()
        return {job_id for job_id, value in zip(job_ids, found, strict=True) if value is not None}


def _each_alone(
    call: Callable[[Job], list[Answer]], jobs: Sequence[Job], refusal: ResponseError
) -> list[Answer | NotStored]:
    """The answers of one call a job, after Redis refused them together: Redis 7 does for the keys of one.

    Raises the refusal if there is only one job.
    """
    if len(jobs) == 1:
        raise refusal
    answers: list[Answer | NotStored] = []
    for job in jobs:
        try:
            answers += call(job)
        except ResponseError as error:
            answers.append(NotStored(f"{type(error).__name__}: {error}"))
    return answers


def _begun(job_id: str, answer: Any) -> Begun | JobError | NotStored:
    if isinstance(answer, list):
        now, received_at, cancelled, held_s, worked_s, lost = answer
        times = (float(now), float(received_at), bool(cancelled), float(held_s), float(worked_s))
        return Receipt(*times, int(lost))
    text = _text(answer)
    if text == "unusable":
        reason = f"another app wrote the key {job_key(job_id)}, which must be the job's record"
        log.error("job %s cannot begin: %s", job_id, reason)
        return JobError(ErrorCode.INTERNAL, f"{reason}; delete it, and submit the job again")
    if text.startswith("{"):
        match from_json(text):
            case {"result": {"exc_message": [str(code), str(message), *more]}}:
                return JobError(code, message, *more)
        return "ended"
    return NotStored(text.removeprefix("error ")) if text.startswith("error ") else text


def _keys_of(job_id: str) -> list[str]:
    return [result_key(job_id), job_key(job_id), cancel_key(job_id)]


def _text(answer: Any) -> Any:
    return answer.decode() if isinstance(answer, bytes) else answer


GONE_AFTER_TIMEOUTS: Final = 2
"""Timeouts after a delivery ran out. A message that is there is renewed or put back earlier."""
NUMBER: Final = r"\d{1,11}(?:\.\d*)?"
PLACE: Final = re.compile(
    rf"(?:list|delayed (?P<due_at>{NUMBER})) (?P<list>.+)"
    rf"|held (?P<held_until>{NUMBER}) (?P<timeout_s>{NUMBER}) \S+|none",
    re.DOTALL,
)
"""The forms of the field ``at``, which ``lua/places.lua`` documents."""


class JobRecord:
    """Reads a record. Times are Redis's clock, Unix time in seconds; None if unknown.

    Attributes:
        fields: The record as text.
        at: Where the message is: list, delayed, held or none. Empty if it is not noted, as in release 0.1.0.
        list: Where the message waits, or will wait after its delay.
        until: When its delay ends, or the delivery that holds it unless renewed.
        timeout_s: From the delivery's last renewal to its end; 0 if the message is not held.
    """

    def __init__(self, fields: Mapping[bytes, bytes]) -> None:
        self.fields = {
            name.decode(errors="replace"): value.decode(errors="replace") for name, value in fields.items()
        }
        match = PLACE.fullmatch(self.fields.get("at", ""))
        self.at = match[0].partition(" ")[0] if match else ""
        self.list = match["list"] if match else None
        self.until = as_number(match["due_at"] or match["held_until"]) if match else None
        self.timeout_s = (as_number(match["timeout_s"]) if match else None) or 0.0

    def number(self, name: str) -> float | None:
        """A field that is a number."""
        return as_number(self.fields.get(name))

    def is_late(self, now: float) -> bool:
        """Whether the job waits, although its deadline has passed. Only our clients note it."""
        waits = self.at in ("list", "delayed") and not {"holder", "ended_at"} & self.fields.keys()
        return waits and (self.number("deadline_at") or math.inf) <= now

    def is_gone(self, now: float) -> bool:
        """Whether the job has not ended, and its message was removed or is overdue for long.

        A worker that renews its claim lives, whatever became of the message. While a worker that died with
        the job is still announced, it counts as one that would put the message back.
        """
        ends_at = max(self.until or 0.0, (self.number("renewed_at") or 0.0) + self.timeout_s)
        overdue_s = max(GONE_AFTER_TIMEOUTS * self.timeout_s, ANNOUNCEMENT_TTL_S)
        is_overdue = self.at == "held" and ends_at + overdue_s < now
        return "ended_at" not in self.fields and (self.at == "none" or is_overdue)

    def is_gone_for(self, workers: Iterable[WorkerStatus]) -> bool:
        """Whether a message that ``is_gone`` surely is, with these workers.

        Ready ones put overdue messages back. Those of release 0.1.0, which do not announce their own version,
        do not note where messages are.
        """
        workers, sent_to = list(workers), self.fields.get("list")
        roles = set(ROLE_QUEUES) if sent_to is None else {role_of(sent_to)}
        is_noted = all("kronos" in worker.versions for worker in workers)
        ready = {worker.role for worker in workers if worker.is_ready}
        return is_noted and (self.at in ("none", "list") or roles <= ready)


def as_number(text: str | None) -> float | None:
    """A number that one of our scripts wrote; None for any other text."""
    return float(text) if text and re.fullmatch(NUMBER, text) else None
