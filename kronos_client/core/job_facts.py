"""JobFacts: what Redis says about one job; list_jobs: the newest of a kind. Neither needs a worker."""

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, computed_field
from redis import Redis
from redis.client import NEVER_DECODE
from redis.exceptions import NoPermissionError

from kronos_client.contract.errors import JobError
from kronos_client.contract.names import DEAD_KEY, Kind, cancel_key, job_key, jobs_key, result_key
from kronos_client.core.kinds import progress_of
from kronos_client.core.stored import NOTHING, Stored, read_stored
from kronos_client.redis.connection import read_bytes
from kronos_client.redis.job_store import JobRecord, as_number
from kronos_client.redis.queues import (
    CANCELLED_PREFIX,
    FEED,
    TAKEN_KEY,
    list_name,
    queue_and_step,
    waiting_keys,
)
from kronos_client.redis.routing import jobs_per_s, live_workers, why_waiting

MAX_STATE_BYTES: Final = 8192
"""A stored state is read up to here: enough for an error, and for the status before a long result."""
MAX_ATTEMPTS: Final = 8
RENEWED_WITHIN_S: Final = 15
"""Seconds since the last renewal after which a worker probably lost its claim: it renews every 5 s."""
NEXT: Final = {
    "unknown": "Check the id, or submit it. A job of another Celery client is known once a worker begins it.",
    "waiting": "Wait, or add workers.",
    "not there": "If this does not change, submit it again under its id: that is safe.",
    "delayed": "Wait.",
    "held": "Wait. kronos status shows its worker.",
    "vanished": "Wait: a worker gets it again when the claim has ended. Start one if none runs.",
    "gone": "Submit it again: that is safe, also under its id.",
    "ended": "Read its result.",
    "failed": "The error says what to do.",
    "expired": "Its result is no longer kept: submit it again.",
}

Where = Literal["unknown", "waiting", "delayed", "held", "gone", "ended"]


@dataclass(frozen=True)
class Attempt:
    """An attempt to compute a job. Times are Unix time in seconds."""

    begun_at: float | None
    ended_at: float | None
    worker: str
    how: Annotated[str | None, Field(description="how it ended, if without the job's outcome")] = None


class JobFacts(BaseModel):
    """What Redis says about a job. Times are Redis's clock, Unix time in seconds; null: unknown or none."""

    model_config = ConfigDict(frozen=True)

    id: str
    where: Where = Field(description="`held` by a worker; `gone`: there is neither a message nor an outcome")
    list: str | None = Field(description="where it waits, or was sent to, in words")
    num_before: int | None = Field(
        description="about how many jobs come before it, without cancelled ones; null if its list is empty"
    )
    until: float | None = Field(description="when its delay ends, or its claim unless renewed")
    left_s: float | None = Field(
        description="about how long it waits for a worker, or for its delay, or is computed"
    )
    num_ready: int = Field(description="ready workers of its queue")
    waiting: str | None = Field(description="why none is ready, and the command that starts one")
    is_worker_alive: bool = Field(description="whether the last attempt's worker is announced")
    attempts: Sequence[Attempt] = Field(
        description="the last ones; the last of all may go on, or have ended with the job or with its worker"
    )
    bars: Sequence[int] | None = Field(description="two numbers: of those done, and of all")
    state: str | None = Field(description="Celery's name of the stored state")
    kept_until: float | None = Field(description="when that expires")
    error: Sequence[str] | None = Field(description="code and message of a job that failed")
    is_cancel_requested: bool
    dead_reason: str | None = Field(
        description="why a message with this id is a dead one; over HTTP for keys with admin"
    )
    unreadable: Sequence[str] = Field(
        description="keys that this user may not read, or that another app wrote"
    )

    @computed_field(description="what its submitter or an operator should do next")  # type: ignore[prop-decorator]
    @property
    def next(self) -> str:
        if self.where == "waiting" and self.waiting is not None:
            return self.waiting
        more = {
            "waiting": "not there" if self.num_before is None else None,
            "held": None if self.is_worker_alive else "vanished",
            "ended": "failed" if self.error else None if self.state else "expired",
        }
        return NEXT[more.get(self.where) or self.where]


def read_job(redis: Redis, job_id: str, *, reads_dead: bool = True) -> JobFacts:
    """Read what Redis says about a job, with all dead messages unless ``reads_dead`` is false. Blocks."""
    state_key, unreadable = result_key(job_id), set[str]()
    of_job = [("HGETALL", job_key(job_id)), ("EXISTS", cancel_key(job_id)), ("TTL", state_key)]
    get_state = ("GETRANGE", state_key, 0, MAX_STATE_BYTES - 1)
    fields, is_cancelled, ttl_s, text, (seconds, _) = _ask(redis, unreadable, *of_job, get_state, ("TIME",))
    record, now, workers = JobRecord(fields or {}), float(seconds), live_workers(redis)
    stored = read_stored(job_id, text, is_cut=True) if text else NOTHING

    sent_to = record.list or record.fields.get("list", "")
    queue = queue_and_step(sent_to)[0].removesuffix(FEED)
    rate = jobs_per_s(queue, workers)
    num_ready = sum(worker.queue == queue and worker.is_ready for worker in workers)
    bars = None
    match progress_of(stored):
        case {"bars_done": int(done), "bars_total": int(total)}:
            bars = done, total

    where: Where = "waiting" if fields else "unknown"
    num_before = left_s = None
    if stored.has_ended or "ended_at" in record.fields:
        where = "ended"
    elif record.at == "none" or (record.is_gone(now) and record.is_gone_for(workers)):
        where = "gone"
    elif record.at == "held" or (record.number("renewed_at") or 0) > now - RENEWED_WITHIN_S:
        where = "held"
        elapsed_s = now - (record.number("begun_at") or now)
        left_s = elapsed_s * (bars[1] - bars[0]) / bars[0] if bars and bars[0] > 0 else None
    elif record.at == "delayed" and record.until is not None:
        where, left_s = "delayed", record.until - now
    elif (num_before := _num_before(redis, unreadable, sent_to, record.number("place") or 0)) is not None:
        left_s = num_before / rate if rate else None if num_before or not num_ready else 0.0
    dead_ones = dead_messages(redis) if reads_dead else []
    dead = [message for message in dead_ones if message.get("id") == job_id]
    return JobFacts(
        id=job_id,
        where=where,
        list=list_name(sent_to) if sent_to else None,
        num_before=num_before,
        until=record.until,
        left_s=left_s,
        num_ready=num_ready,
        waiting=why_waiting(queue, workers),
        is_worker_alive=record.fields.get("worker") in [worker.node for worker in workers],
        attempts=_attempts(record),
        bars=bars,
        state=stored.status if text else None,
        kept_until=now + ttl_s if ttl_s and ttl_s > 0 else None,
        error=(stored.value.code, stored.value.message) if isinstance(stored.value, JobError) else None,
        is_cancel_requested=bool(is_cancelled),
        dead_reason=dead[0].get("reason") if dead else None,
        unreadable=tuple(sorted(unreadable)),
    )


def _num_before(redis: Redis, unreadable: set[str], sent_to: str, place: float) -> int | None:
    num_before = 0
    for key in waiting_keys(queue_and_step(sent_to)[0]):
        length, num_taken = _ask(redis, unreadable, ("LLEN", key), ("HGET", TAKEN_KEY, key))
        first, last = int(num_taken or 0), place - 1 if key == sent_to else math.inf
        (num_cancelled,) = _ask(redis, unreadable, ("ZCOUNT", CANCELLED_PREFIX + key, first, last))
        num = min(place - first, (length or 0) - 1) if key == sent_to else length or 0
        num_before += max(0, int(num) - (num_cancelled or 0))
        if key == sent_to:
            return num_before if length else None
    return None


def dead_messages(redis: Redis) -> list[dict[str, Any]]:
    """The messages that no worker could read, newest first."""
    entries = []
    for text in read_bytes(redis, "LRANGE", DEAD_KEY, 0, -1):
        entry = {"reason": None, "message": text.decode(errors="replace")}
        with suppress(ValueError):  # written by another program
            read = json.loads(text)
            entry = read if isinstance(read, dict) else entry
        entries.append(entry)
    return entries


def _attempts(record: JobRecord) -> tuple[Attempt, ...]:
    rows = [line.split(" ", 3) for line in record.fields.get("attempts", "").splitlines()]
    attempts = [Attempt(as_number(row[0]), as_number(row[1]), *row[2:]) for row in rows if len(row) == 4]
    if "begun_at" in record.fields:
        last = record.number("begun_at"), record.number("ended_at"), record.fields.get("worker", "")
        attempts.append(Attempt(*last))
    return tuple(attempts[-MAX_ATTEMPTS:])


def _ask(redis: Redis, unreadable: set[str], *commands: tuple[Any, ...]) -> list[Any]:
    """The answers; None for a key that cannot be read, which is added to ``unreadable``."""
    with redis.pipeline(transaction=False) as pipe:
        for command in commands:
            pipe.execute_command(*command, **{NEVER_DECODE: True})  # type: ignore[no-untyped-call]
        answers = pipe.execute(raise_on_error=False)
    for position, answer in enumerate(answers):
        if isinstance(answer, NoPermissionError) or str(answer).startswith("WRONGTYPE"):
            unreadable.add(commands[position][1])
            answers[position] = None
        elif isinstance(answer, Exception):
            raise answer
    return answers


class ListedJob(NamedTuple):
    """A job, and its stored state, in which a long result is incomplete. Times are Unix time in seconds."""

    id: str
    submitted_at: float
    stored: Stored


def list_jobs(
    redis: Redis, kind: Kind, limit: int, until: float | None = None
) -> tuple[Sequence[ListedJob], float | None]:
    """The newest jobs that were submitted at ``until`` or before, newest first, and the next ``until``.

    A job whose result is no longer kept is left out, so that a page may be shorter than ``limit``. Blocks.

    Args:
        redis: Decodes its answers, as ``connect`` makes it.
    """
    key = jobs_key(kind)
    newest = "+inf" if until is None else repr(until)
    found: Any = redis.zrange(key, newest, "-inf", True, True, byscore=True, offset=0, num=limit + 1)
    page: list[tuple[str, float]] = found[:limit]
    following = found[limit][1] if len(found) > limit else None
    with redis.pipeline(transaction=False) as opened:
        pipe: Any = opened  # its execute_command has no types
        for job_id, _ in page:
            # As bytes: the end may be half a character.
            pipe.execute_command(
                "GETRANGE", result_key(job_id), 0, MAX_STATE_BYTES - 1, **{NEVER_DECODE: True}
            )
            pipe.hmget(job_key(job_id), "fingerprint", "ended_at")
        answers = pipe.execute()
    jobs: list[ListedJob] = []
    gone: list[str] = []
    for (job_id, submitted_at), state, (fingerprint, ended_at) in zip(
        page, answers[::2], answers[1::2], strict=True
    ):
        if state:
            jobs.append(ListedJob(job_id, submitted_at, read_stored(job_id, state, is_cut=True)))
        elif fingerprint and not ended_at:
            jobs.append(ListedJob(job_id, submitted_at, NOTHING))
        else:
            gone.append(job_id)
    if gone:
        redis.zrem(key, *gone)
    return jobs, following
