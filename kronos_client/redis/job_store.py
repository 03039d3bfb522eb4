"""A job's record in Redis: what it holds, when it was first received, who works on it, when it ended.

Each step of a job's life is one script: it costs one round trip, and nothing can come in between.

A job under way has a claim: its holder may work on the job and store its outcome, and no other process may.
The record names the holder by the tag of its delivery. The claim lives as long as that delivery is noted as
taken. A claim that ended without a release was lost with its holder, and the record counts that.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from redis import Redis

from kronos_client.contract.names import cancel_key, job_key
from kronos_client.redis.scripts import read_script

log = logging.getLogger(__name__)

ENDED_AT: Final = "ended_at"

MAX_WAIT_S: Final = 7 * 24 * 3600
"""How long the record of a job that has not ended is kept."""

VOLATILE_FIELDS: Final = {"submitted_at"}

LOST_BEFORE_SUSPECT: Final = 2
"""Attempts that ended with their process, of a job that is computed alone from then on."""

OnRepeated = Callable[[str], object]
"""Is called with the tag of a delivery."""


def canonical_json(payload: Mapping[str, Any]) -> str:
    """The same text for two jobs that ask for the same, whenever they were submitted."""
    lasting = {name: value for name, value in payload.items() if name not in VOLATILE_FIELDS}
    return json.dumps(lasting, sort_keys=True, separators=(",", ":"))


def fingerprint(payload: Mapping[str, Any] | str) -> str:
    """A short text that is the same for two jobs that ask for the same.

    Args:
        payload: The job, or its canonical JSON.
    """
    content = payload if isinstance(payload, str) else canonical_json(payload)
    return hashlib.sha256(content.encode()).hexdigest()


@dataclass(frozen=True)
class Receipt:
    """What is known of a job as a worker begins it; moments are of Redis's clock, Unix time in seconds.

    Attributes:
        held_s: what is left of another's claim if that is not renewed; 0 if the job may be begun.
        worked_s: how long earlier claims lasted.
        lost: attempts that ended with their process, alone in it or not.
        lost_alone: attempts that ended with a process in which the job was alone.
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
        """Whether the job may be what its processes died of: nobody else may be in its next one."""
        return self.lost >= LOST_BEFORE_SUSPECT

    def after(self, elapsed_s: float) -> "Receipt":
        """The same, as of so much later."""
        return replace(self, now=self.now + elapsed_s)

    def waited_s(self, submitted_at: float | None) -> float:
        """Seconds since ``submitted_at``, else since the job's first receipt."""
        return self.now - (self.received_at if submitted_at is None else submitted_at)


class JobStore:
    """Reads and writes jobs' records and states; the records of ended jobs live twice as long as results.

    Args:
        redis: Redis.
        result_ttl_s: Seconds that states and results live.
        taken_key: The sorted set of the deliveries that workers of one role have taken; None in a client.
        on_repeated: Called with the tag of a delivery whose job another process was given meanwhile.
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
        self._ttl_s = 2 * result_ttl_s
        self._run_begin = redis.register_script(read_script("begin"))
        self._run_store = redis.register_script(read_script("store"))
        self._run_renew = redis.register_script(read_script("renew_claims"))
        self._run_release = redis.register_script(read_script("release"))
        self._run_count = redis.register_script(read_script("count"))
        self._run_cancel = redis.register_script(read_script("cancel"))

    def begin(
        self,
        job_id: str,
        result_key: str,
        started: str | bytes,
        tag: str,
        timeout_s: float,
        content: str = "",
    ) -> Receipt | None:
        """A worker begins a job: take its claim, store and publish its state.

        While another holds the claim, nothing is stored.

        Args:
            job_id: The job's id.
            result_key: The key of its state.
            started: The state to store.
            tag: Of the delivery that the job came by.
            timeout_s: Seconds after which a delivery that is not renewed is put back.
            content: The job's fingerprint. A job under way with this id and another fingerprint is kept, and
                this one is dropped; empty if it does not matter.

        Returns:
            What is known of the job; None if it has its outcome, or is dropped.
        """
        answer = self._run_begin(
            keys=[result_key, job_key(job_id), cancel_key(job_id), *self._taken_keys],
            args=[started, self._result_ttl_s, MAX_WAIT_S, tag, timeout_s, content],
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

    def renew(self, claims: Mapping[str, str], others: Iterable[str] = ()) -> dict[str, bool]:
        """Count deliveries as made now, which renews the claims that they have.

        Args:
            claims: The job's id for the tag of each delivery that has a claim.
            others: The tags of deliveries without.

        Returns:
            For the tag of each claim whether it lives; False if it is another's, or the job ended otherwise.
        """
        tags = [*claims, *others]
        if not tags:
            return {}
        answers = self._run_renew(
            keys=[*self._taken_keys, *map(job_key, claims.values())], args=[MAX_WAIT_S, *tags]
        )
        for tag, answer in zip(claims, answers, strict=True):
            if answer < 0:
                self._on_repeated(tag)
        return {tag: answer > 0 for tag, answer in zip(claims, answers, strict=True)}

    def release(self, job_id: str, tag: str, *, is_lost: bool = False) -> None:
        """End a claim, so that the job may be begun at once. Nothing changes if it is another's.

        Args:
            job_id: The job's id.
            tag: Of the delivery that has the claim, or may have it.
            is_lost: Whether the attempt ended with its process, or the engine in it.
        """
        self._run_release(keys=[job_key(job_id)], args=[tag, "lost" if is_lost else ""])

    def count_lost_alone(self, job_id: str, tag: str) -> int | None:
        """Count an attempt under this claim that ended with a process in which the job was alone.

        Returns:
            How many did; None if the claim is another's.
        """
        return self._count(job_id, tag, "lost_alone")

    def count_put_off(self, job_id: str, tag: str) -> int | None:
        """Count an attempt that came to nothing, since no process could be had for the job alone.

        Returns:
            How many did; None if the claim is another's.
        """
        return self._count(job_id, tag, "put_off")

    def _count(self, job_id: str, tag: str, what: str) -> int | None:
        answer = self._run_count(keys=[job_key(job_id)], args=[tag, what])
        return None if answer is None else int(answer)

    def store(
        self,
        job_id: str,
        result_key: str,
        state: str | bytes,
        *,
        is_outcome: bool,
        tag: str = "",
        over_claim: bool = False,
    ) -> bool:
        """Store and publish a job's state or outcome.

        The first outcome stands. What comes without the job's claim does not count. With its outcome a job
        ends, and the wish to cancel it is met or moot.

        Args:
            job_id: The job's id.
            result_key: The key of its state.
            state: The state.
            is_outcome: Whether it is the job's outcome.
            tag: Of the delivery that has the claim; empty for none.
            over_claim: Store it in any case. The holder, if there is one, finds the claim taken away.

        Returns:
            Whether it counts.
        """
        answer = self._run_store(
            keys=[result_key, job_key(job_id), cancel_key(job_id), *self._taken_keys],
            args=[
                state,
                self._result_ttl_s,
                self._ttl_s if is_outcome else "",
                tag,
                "over" if over_claim else "",
            ],
        )
        if answer < 0:
            self._on_repeated(tag)
        return bool(answer > 0)

    def is_claimed(self, job_id: str) -> bool:
        """Whether a worker has the job, or had it when it vanished."""
        return bool(self._redis.hexists(job_key(job_id), "holder"))

    def has_ended(self, job_id: str) -> bool:
        """Whether the job came to its outcome."""
        return bool(self._redis.hexists(job_key(job_id), ENDED_AT))

    def request_cancel(self, job_id: str) -> bool:
        """Ask for a job to be cancelled, wherever it is: it may wait, or run, for days.

        False where it has ended already.
        """
        return bool(self._run_cancel(keys=[job_key(job_id), cancel_key(job_id)], args=[MAX_WAIT_S]))

    def is_cancelled(self, job_id: str) -> bool:
        """Whether somebody asked for it."""
        return bool(self._redis.exists(cancel_key(job_id)))
