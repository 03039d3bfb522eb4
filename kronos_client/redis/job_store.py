"""A job's record in Redis: what it holds, when it was first seen, who works on it, when it ended.

Each step of a job's life is one script, so that it costs one round trip and nothing can come in between.

A job under way has a lease: who holds it may work on the job and store its outcome, nobody else may. It
ends by Redis's clock unless its holder renews it. A job whose lease ended so, and was never released, was
lost with its holder: the record counts that.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from redis import Redis

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import cancel_key, job_key
from kronos_client.redis.scripts import read_script

log = logging.getLogger(__name__)

ENDED_AT: Final = "ended_at"

MAX_WAIT_S: Final = 7 * 24 * 3600
"""How long the record of a job that has not ended is kept."""

VOLATILE_FIELDS: Final = {"submitted_at"}

LOST_BEFORE_SUSPECT: Final = 2
"""Attempts that ended with their process, of a job that is computed alone from then on."""

LeaseHook = Callable[[str], object]
"""Is called with a lease's token."""


def fingerprint(payload: Mapping[str, Any]) -> str:
    """The same for two jobs that ask for the same, whenever they were submitted."""
    lasting = {name: value for name, value in payload.items() if name not in VOLATILE_FIELDS}
    canonical = json.dumps(lasting, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


@dataclass(frozen=True)
class Receipt:
    """What is known of a job as a worker begins it; moments are of Redis's clock, Unix time in seconds.

    Attributes:
        held_s: what is left of another's lease, who works on the job; 0 where it may be begun.
        leased_s: how long it was worked on under leases before.
        lost: attempts that ended with their process, whoever else was in it.
        lost_alone: attempts that ended with a process in which the job was alone.
    """

    now: float
    received_at: float
    is_cancelled: bool
    held_s: float = 0.0
    leased_s: float = 0.0
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


class JobRecords:
    """Reads and writes job records; those of ended jobs live twice as long as results.

    Args:
        on_repeated: called with the token of a lease whose job is another's meanwhile.
    """

    def __init__(self, redis: Redis, result_ttl_s: int, on_repeated: LeaseHook = lambda token: None) -> None:
        self._redis = redis
        self._on_repeated = on_repeated
        self._result_ttl_s = result_ttl_s
        self._ttl_s = 2 * result_ttl_s
        self._run_begin = redis.register_script(read_script("begin"))
        self._run_store = redis.register_script(read_script("store"))
        self._run_renew = redis.register_script(read_script("renew"))
        self._run_release = redis.register_script(read_script("release"))
        self._run_count = redis.register_script(read_script("count"))
        self._run_cancel = redis.register_script(read_script("cancel"))

    def begin(
        self,
        job_id: str,
        result_key: str,
        started: str | bytes,
        *,
        lease_token: str = "",
        lease_s: float = 0.0,
        content: str = "",
    ) -> Receipt | None:
        """A worker begins a job: store and publish its state ``started``; None where it has its outcome.

        With a token it takes the job's lease for so long; while another holds that, nothing is stored. With
        ``content``, its fingerprint, None is also for what only has the id of a job under way.
        """
        answer = self._run_begin(
            keys=[result_key, job_key(job_id), cancel_key(job_id)],
            args=[started, self._result_ttl_s, MAX_WAIT_S, lease_token, lease_s, content],
        )
        if answer is None:
            return None
        if answer in ("conflict", b"conflict"):
            log.warning("job %s: another job has this id and is under way; this one is dropped", job_id)
            return None
        now, received_at, is_cancelled, held_s, leased_s, lost, lost_alone = answer
        return Receipt(
            float(now),
            float(received_at),
            bool(is_cancelled),
            float(held_s),
            float(leased_s),
            int(lost),
            int(lost_alone),
        )

    def renew_leases(self, tokens: Sequence[tuple[str, str]], lease_s: float) -> list[bool]:
        """These leases, each a job's id and its token, live so long from now.

        For each False where another holds it, or the job has its outcome.
        """
        answers = self._run_renew(
            keys=[job_key(job_id) for job_id, _ in tokens],
            args=[lease_s, MAX_WAIT_S, *(token for _, token in tokens)],
        )
        for (_, token), answer in zip(tokens, answers, strict=True):
            if answer < 0:
                self._on_repeated(token)
        return [answer > 0 for answer in answers]

    def release_lease(self, job_id: str, token: str, *, is_lost: bool = False) -> None:
        """Whoever takes the job next need not wait. Of another's lease nothing changes.

        ``is_lost``: the attempt ended with its process, or the engine in it.
        """
        self._run_release(keys=[job_key(job_id)], args=[token, "lost" if is_lost else ""])

    def count_lost_alone(self, job_id: str, token: str) -> int | None:
        """An attempt under this lease ended with a process in which the job was alone; how many did.

        None where the lease is another's.
        """
        return self._count(job_id, token, "lost_alone")

    def count_put_off(self, job_id: str, token: str) -> int | None:
        """Likewise an attempt that came to nothing, since no process could be had for the job alone."""
        return self._count(job_id, token, "put_off")

    def _count(self, job_id: str, token: str, what: str) -> int | None:
        answer = self._run_count(keys=[job_key(job_id)], args=[token, what])
        return None if answer is None else int(answer)

    def store(
        self,
        job_id: str,
        result_key: str,
        state: str | bytes,
        *,
        is_outcome: bool,
        lease_token: str = "",
        over_lease: bool = False,
    ) -> bool:
        """Store and publish a job's state or outcome; whether it counts: the first outcome stands.

        What comes without the job's lease does not count: with a token that is no longer the current one, or
        with none while there is one, unless ``over_lease``: then its holder finds it taken away. With its
        outcome a job ends, and the wish to cancel it is met or moot.
        """
        answer = self._run_store(
            keys=[result_key, job_key(job_id), cancel_key(job_id)],
            args=[
                state,
                self._result_ttl_s,
                self._ttl_s if is_outcome else "",
                lease_token,
                "over" if over_lease else "",
            ],
        )
        if answer < 0:
            self._on_repeated(lease_token)
        return bool(answer > 0)

    def explain_absence(self, job_id: str) -> JobError | None:
        """Why a job without result will never have one; None where it is still to come."""
        record = self._redis.hgetall(job_key(job_id))
        if not record:
            return JobError(ErrorCode.LOST, "nothing is known of this job any more; submit it anew")
        if ENDED_AT in record and self._is_over(record[ENDED_AT]):
            return JobError(
                ErrorCode.RESULT_EXPIRED,
                f"the job ended, but its result was kept for {self._result_ttl_s} s only; submit it anew, or "
                "have KRONOS_RESULT_TTL_S raised",
            )
        return None

    def is_leased(self, job_id: str) -> bool:
        """Whether a worker has it, or had it when it vanished."""
        return bool(self._redis.hexists(job_key(job_id), "lease_token"))

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

    def now(self) -> float:
        """Redis's clock, Unix time in seconds."""
        seconds, microseconds = self._redis.time()
        return float(seconds + microseconds / 1e6)

    def _is_over(self, ended_at: str | bytes) -> bool:
        """Whether the result of a job that ended then is no longer kept."""
        return self.now() - float(ended_at) > self._result_ttl_s
