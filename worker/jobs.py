"""A job's record in Redis: what it holds, when it was first seen, when it ended, whether to cancel it.

Each step of a job's life is one script, so that it costs one round trip and nothing can come in between.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from redis import Redis

from worker.contract.errors import ErrorCode, JobError
from worker.contract.names import cancel_key, job_key

ENDED_AT: Final = "ended_at"

MAX_WAIT_S: Final = 7 * 24 * 3600
"""How long the record of a job that has not ended is kept."""

VOLATILE_FIELDS: Final = {"submitted_at"}


def fingerprint(payload: Mapping[str, Any]) -> str:
    """The same for two jobs that ask for the same, whenever they were submitted."""
    lasting = {name: value for name, value in payload.items() if name not in VOLATILE_FIELDS}
    canonical = json.dumps(lasting, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


# KEYS: record, wish to cancel. ARGV: fingerprint, seconds that results live, seconds that the record lives.
# Gives what holds the id otherwise, else the moment and whether the outcome is still kept.
_CLAIM: Final = """
local moment = redis.call('TIME')
local now = string.format('%d.%06d', moment[1], moment[2])
if redis.call('HSETNX', KEYS[1], 'fingerprint', ARGV[1]) == 0 and
        redis.call('HGET', KEYS[1], 'fingerprint') ~= ARGV[1] then
    return {now, 'conflict'}
end
local ended_at = redis.call('HGET', KEYS[1], 'ended_at')
if ended_at and now - ended_at <= tonumber(ARGV[2]) then
    return {now, 'kept'}
end
if ended_at then
    redis.call('HDEL', KEYS[1], 'ended_at', 'received_at')
    redis.call('DEL', KEYS[2])
end
redis.call('EXPIRE', KEYS[1], ARGV[3])
return {now, 'claimed'}
"""

_HAS_OUTCOME: Final = """
local function has_outcome(key)
    local is_json, meta = pcall(cjson.decode, redis.call('GET', key) or '')
    local status = is_json and type(meta) == 'table' and meta.status
    return status == 'SUCCESS' or status == 'FAILURE' or status == 'REVOKED'
end
"""

# KEYS: result, record, wish to cancel. ARGV: the state to store, seconds that it lives, and the record.
_BEGIN: Final = f"""{_HAS_OUTCOME}
if has_outcome(KEYS[1]) then
    return false
end
local moment = redis.call('TIME')
local now = string.format('%d.%06d', moment[1], moment[2])
if redis.call('HEXISTS', KEYS[2], 'ended_at') == 1 then -- its outcome is no longer kept: it begins anew
    redis.call('HDEL', KEYS[2], 'ended_at', 'received_at')
    redis.call('DEL', KEYS[3])
end
redis.call('HSETNX', KEYS[2], 'received_at', now)
redis.call('EXPIRE', KEYS[2], ARGV[3])
redis.call('SETEX', KEYS[1], ARGV[2], ARGV[1])
redis.call('PUBLISH', KEYS[1], ARGV[1])
return {{now, redis.call('HGET', KEYS[2], 'received_at'), redis.call('EXISTS', KEYS[3])}}
"""

# KEYS and ARGV as above, the record's life being empty for a state that is no outcome. A record that is not
# what it should be must not keep the outcome from being stored.
_STORE: Final = f"""{_HAS_OUTCOME}
if has_outcome(KEYS[1]) then
    return 0
end
redis.call('SETEX', KEYS[1], ARGV[2], ARGV[1])
if ARGV[3] ~= '' then
    if redis.call('TYPE', KEYS[2]).ok == 'hash' then
        local moment = redis.call('TIME')
        redis.call('HSET', KEYS[2], 'ended_at', string.format('%d.%06d', moment[1], moment[2]))
        redis.call('EXPIRE', KEYS[2], ARGV[3])
    end
    redis.call('DEL', KEYS[3])
end
redis.call('PUBLISH', KEYS[1], ARGV[1])
return 1
"""


@dataclass(frozen=True)
class Receipt:
    """What is known of a job as a worker begins it; moments are of Redis's clock, Unix time in seconds."""

    now: float
    received_at: float
    is_cancelled: bool

    def waited_s(self, submitted_at: float | None) -> float:
        """Seconds since ``submitted_at``, else since the job's first receipt."""
        return self.now - (self.received_at if submitted_at is None else submitted_at)


class JobRecords:
    """Reads and writes job records; those of ended jobs live twice as long as results."""

    def __init__(self, redis: Redis, result_ttl_s: int) -> None:
        self._redis = redis
        self._result_ttl_s = result_ttl_s
        self._ttl_s = 2 * result_ttl_s
        self._run_claim = redis.register_script(_CLAIM)
        self._run_begin = redis.register_script(_BEGIN)
        self._run_store = redis.register_script(_STORE)

    def claim(self, job_id: str, payload: Mapping[str, Any]) -> float | None:
        """Note what a job holds before it is enqueued; the moment of that, or None where it is not to be.

        A job that was submitted before and has its outcome is not computed again, unless its result is no
        longer kept. One that is still under way may be enqueued again: its first outcome stands.

        Raises JobError ID_CONFLICT where the id was used for other content.
        """
        now, answer = self._run_claim(
            keys=[job_key(job_id), cancel_key(job_id)],
            args=[fingerprint(payload), self._result_ttl_s, MAX_WAIT_S],
        )
        if answer == "conflict":
            raise JobError(
                ErrorCode.ID_CONFLICT,
                f"the id {job_id!r} was used for a job with other content; choose a new one",
            )
        return float(now) if answer == "claimed" else None

    def begin(self, job_id: str, result_key: str, started: str | bytes) -> Receipt | None:
        """A worker begins a job: store and publish its state ``started``; None where it has its outcome."""
        answer = self._run_begin(
            keys=[result_key, job_key(job_id), cancel_key(job_id)],
            args=[started, self._result_ttl_s, MAX_WAIT_S],
        )
        if answer is None:
            return None
        now, received_at, is_cancelled = answer
        return Receipt(float(now), float(received_at), bool(is_cancelled))

    def store(self, job_id: str, result_key: str, state: str | bytes, *, is_outcome: bool) -> bool:
        """Store and publish a job's state or outcome; whether it counts: the first outcome stands.

        With its outcome a job ends, and the wish to cancel it is met or moot.
        """
        return bool(
            self._run_store(
                keys=[result_key, job_key(job_id), cancel_key(job_id)],
                args=[state, self._result_ttl_s, self._ttl_s if is_outcome else ""],
            )
        )

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

    def has_ended(self, job_id: str) -> bool:
        """Whether the job came to its outcome."""
        return bool(self._redis.hexists(job_key(job_id), ENDED_AT))

    def request_cancel(self, job_id: str) -> None:
        """Ask for a job to be cancelled, wherever it is."""
        self._redis.set(cancel_key(job_id), "1", ex=self._ttl_s)

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
