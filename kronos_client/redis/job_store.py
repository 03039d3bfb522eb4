"""A job's record in Redis: its content's fingerprint, first receipt, holder and end.

Each step is one atomic script.

A job under way has a claim. Only the claim's holder may work on the job and store its outcome. The record
names the holder by the tag of its delivery. The claim lives as long as that delivery is listed as taken. A
claim that ended without a release was lost with its holder; the record counts these.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from redis import Redis

from kronos_client.contract.names import cancel_key, job_key, result_key
from kronos_client.redis.scripts import read_script

log = logging.getLogger(__name__)

MAX_WAIT_S: Final = 7 * 24 * 3600
"""Seconds that the record of an unfinished job is kept."""

LOST_BEFORE_SUSPECT: Final = 2
"""After so many attempts that ended with their process, the job is computed alone."""

SCRIPTS: Final = ("begin", "store", "renew_claims", "release", "count", "cancel")

OnRepeated = Callable[[str], object]
"""Called with the tag of a delivery."""


def canonical_json(payload: Mapping[str, Any]) -> str:
    """A text that is the same for two jobs with the same content, whenever they were submitted."""
    lasting = {name: value for name, value in payload.items() if name != "submitted_at"}
    return json.dumps(lasting, sort_keys=True, separators=(",", ":"))


def fingerprint(payload: Mapping[str, Any] | str) -> str:
    """A short text that is the same for two jobs, or their canonical JSON, with the same content."""
    content = payload if isinstance(payload, str) else canonical_json(payload)
    return hashlib.sha256(content.encode()).hexdigest()


@dataclass(frozen=True)
class Receipt:
    """A job's record as a worker begins it. Times are Redis's clock, Unix time in seconds.

    Attributes:
        held_s: Seconds until another worker's claim ends unless renewed; 0 if the job may begin.
        worked_s: Seconds that earlier claims lasted.
        lost: Attempts that ended with their process, alone in it or not.
        lost_alone: Attempts that ended with a process in which the job was alone.
    """

    now: float
    received_at: float
    is_cancelled: bool
    held_s: float = 0.0
    worked_s: float = 0.0
    lost: int = 0
    lost_alone: int = 0

    @property
    def is_suspect(self) -> bool:
        """Whether the job may have killed its processes, so that it must be alone in its next one."""
        return self.lost >= LOST_BEFORE_SUSPECT

    def after(self, elapsed_s: float) -> "Receipt":
        """The same receipt, later by this time."""
        return replace(self, now=self.now + elapsed_s)

    def waited_s(self, submitted_at: float | None) -> float:
        """Seconds since ``submitted_at``; if that is None, since the job's first receipt."""
        return self.now - (self.received_at if submitted_at is None else submitted_at)


class JobStore:
    """Reads and writes jobs' records and states; the records of ended jobs live twice as long as results.

    Args:
        result_ttl_s: Seconds that states and results live.
        taken_key: The sorted set of the deliveries that workers of one role have taken; None in a client.
        on_repeated: Called with the tag of a delivery whose job another process has meanwhile.
    """

    def __init__(
        self,
        redis: Redis,
        result_ttl_s: int,
        taken_key: str | None = None,
        on_repeated: OnRepeated = lambda tag: None,
    ) -> None:
        self._redis = redis
        self._taken_keys = [] if taken_key is None else [taken_key]
        self._on_repeated = on_repeated
        self._result_ttl_s = result_ttl_s
        self._run = {name: redis.register_script(read_script(name)) for name in SCRIPTS}

    def begin(
        self, job_id: str, state: str | bytes, tag: str, timeout_s: float, content: str = ""
    ) -> Receipt | None:
        """Take a job's claim, then store and publish its state. Stores nothing while another has the claim.

        Args:
            timeout_s: Seconds until a delivery that is not renewed is put back.
            content: The job's fingerprint. This job is dropped if one with this id and another fingerprint is
                under way. Empty to skip this check.

        Returns:
            The job's record; None if the job has ended, or is dropped.
        """
        answer = self._run["begin"](
            keys=[result_key(job_id), job_key(job_id), cancel_key(job_id), *self._taken_keys],
            args=[state, self._result_ttl_s, MAX_WAIT_S, tag, timeout_s, content],
        )
        if answer is None:
            return None
        if answer in ("conflict", b"conflict"):
            log.warning("job %s: another job has this id and is under way; this one is dropped", job_id)
            return None
        now, received_at, is_cancelled, held_s, worked_s, lost, lost_alone = answer
        return Receipt(
            float(now),
            float(received_at),
            bool(is_cancelled),
            float(held_s),
            float(worked_s),
            int(lost),
            int(lost_alone),
        )

    def renew(
        self, claims: Mapping[str, str], others: Iterable[str] = (), held: Container[str] | None = None
    ) -> dict[str, bool]:
        """Restart the timeout of deliveries, which renews their claims.

        Args:
            claims: Job ids by the tags of the deliveries that have claims, or will soon.
            held: Tags of the claims that are known to be granted, if not all are. Only these can be lost.

        Returns:
            By tag, whether each claim lives. False if another has it, or the job ended otherwise.
        """
        tags = [*claims, *others]
        if not tags:
            return {}
        of_jobs = [key for job_id in claims.values() for key in (job_key(job_id), result_key(job_id))]
        answers = self._run["renew_claims"](keys=[*self._taken_keys, *of_jobs], args=[MAX_WAIT_S, *tags])
        for tag, answer in zip(claims, answers, strict=True):
            if answer < 0 and (held is None or tag in held):
                self._on_repeated(tag)
        return {tag: answer > 0 for tag, answer in zip(claims, answers, strict=True)}

    def release(self, job_id: str, tag: str, *, is_lost: bool = False) -> None:
        """End a delivery's claim, so that the job may begin again at once, unless another has the claim.

        ``is_lost`` counts the attempt as ended with its process, or the engine in it.
        """
        self._run["release"](keys=[job_key(job_id)], args=[tag, "lost" if is_lost else ""])

    def count(self, job_id: str, tag: str, what: Literal["lost_alone", "put_off"]) -> int | None:
        """Count an attempt that ended with a process of its own, or that found no such process.

        Returns the number so far; None if another has the claim.
        """
        answer = self._run["count"](keys=[job_key(job_id)], args=[tag, what])
        return None if answer is None else int(answer)

    def store(
        self,
        job_id: str,
        state: str | bytes,
        *,
        is_outcome: bool,
        tag: str = "",
        over_claim: bool = False,
    ) -> bool:
        """Store and publish a job's state or outcome; returns whether it was stored.

        The first outcome stands. A state without the job's claim is dropped. An outcome ends the job and
        deletes the request to cancel it.

        Args:
            tag: The tag of the delivery that has the claim; empty for none.
            over_claim: Store it even if another has the claim; the holder then loses it.
        """
        record_ttl_s = 2 * self._result_ttl_s if is_outcome else ""
        answer = self._run["store"](
            keys=[result_key(job_id), job_key(job_id), cancel_key(job_id), *self._taken_keys],
            args=[state, self._result_ttl_s, record_ttl_s, tag, "over" if over_claim else ""],
        )
        if answer < 0:
            self._on_repeated(tag)
        return bool(answer > 0)

    def is_claimed(self, job_id: str) -> bool:
        """Whether a worker has the job, or had it when the worker vanished."""
        return bool(self._redis.hexists(job_key(job_id), "holder"))

    def has_ended(self, job_id: str) -> bool:
        """Whether the job has its outcome."""
        return bool(self._redis.hexists(job_key(job_id), "ended_at"))

    def request_cancel(self, job_id: str) -> bool:
        """Request that a job is cancelled, whether it waits or runs; returns False if it has ended."""
        return bool(self._run["cancel"](keys=[job_key(job_id), cancel_key(job_id)], args=[MAX_WAIT_S]))

    def is_cancelled(self, job_id: str) -> bool:
        """Whether the job's cancellation was requested."""
        return bool(self._redis.exists(cancel_key(job_id)))
