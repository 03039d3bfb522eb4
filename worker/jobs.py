"""A job's record in Redis: what it holds, when it was first seen, who works on it, when it ended.

Each step of a job's life is one script, so that it costs one round trip and nothing can come in between.

A job that takes hours has a lease: who holds it may work on the job and store its outcome, nobody else may.
It ends by Redis's clock unless its holder renews it.
"""

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from redis import Redis

from worker.contract.errors import ErrorCode, JobError
from worker.contract.names import cancel_key, job_key

log = logging.getLogger(__name__)

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
if redis.call('EXISTS', KEYS[1]) == 0 then
    redis.call('DEL', KEYS[2]) -- a wish to cancel what was not there
end
if redis.call('HSETNX', KEYS[1], 'fingerprint', ARGV[1]) == 0 and
        redis.call('HGET', KEYS[1], 'fingerprint') ~= ARGV[1] then
    return {now, 'conflict'}
end
local ended_at = redis.call('HGET', KEYS[1], 'ended_at')
if ended_at and now - ended_at <= tonumber(ARGV[2]) then
    return {now, 'kept'}
end
if ended_at then
    redis.call('HDEL', KEYS[1], 'ended_at', 'received_at', 'leased_s')
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

# KEYS: result, record, wish to cancel. ARGV: the state to store, seconds that it lives, and the record, the
# lease's token and its seconds; both empty for a job that needs none. While another holds the lease nothing
# is stored. Last the fingerprint, empty where it does not matter: what has the id of a job under way and
# another fingerprint is no delivery of it.
_BEGIN: Final = f"""{_HAS_OUTCOME}
if has_outcome(KEYS[1]) then
    return false
end
local moment = redis.call('TIME')
local now = string.format('%d.%06d', moment[1], moment[2])
if redis.call('HEXISTS', KEYS[2], 'ended_at') == 1 then -- its outcome is no longer kept: it begins anew
    redis.call('HDEL', KEYS[2], 'ended_at', 'received_at', 'leased_s', 'fingerprint')
    redis.call('DEL', KEYS[3])
end
if ARGV[6] ~= '' and redis.call('HSETNX', KEYS[2], 'fingerprint', ARGV[6]) == 0 and
        redis.call('HGET', KEYS[2], 'fingerprint') ~= ARGV[6] then
    return 'conflict'
end
redis.call('HSETNX', KEYS[2], 'received_at', now)
redis.call('EXPIRE', KEYS[2], ARGV[3])
local held_s = 0
if ARGV[4] ~= '' then
    local holder = redis.call('HGET', KEYS[2], 'lease_token')
    if holder and holder ~= ARGV[4] then
        held_s = math.max(0, tonumber(redis.call('HGET', KEYS[2], 'lease_until')) - now)
    end
    if held_s == 0 then
        local ends_at = string.format('%.6f', now + ARGV[5])
        redis.call('HSET', KEYS[2], 'lease_token', ARGV[4], 'lease_until', ends_at, 'leased_at', now)
    end
end
if held_s == 0 then
    redis.call('SETEX', KEYS[1], ARGV[2], ARGV[1])
    redis.call('PUBLISH', KEYS[1], ARGV[1])
end
return {{now, redis.call('HGET', KEYS[2], 'received_at'), redis.call('EXISTS', KEYS[3]),
    string.format('%.6f', held_s), redis.call('HGET', KEYS[2], 'leased_s') or '0'}}
"""

# KEYS and the first three of ARGV as above, the record's life being empty for a state that is no outcome;
# then the token of the lease that it is stored under, empty for none, and anything for an outcome that ends
# the job whoever has its lease. A record that is not what it should be must not keep the outcome from being
# stored.
_STORE: Final = f"""{_HAS_OUTCOME}
if has_outcome(KEYS[1]) then
    return 0
end
local moment = redis.call('TIME')
local now = string.format('%d.%06d', moment[1], moment[2])
local is_record = redis.call('TYPE', KEYS[2]).ok == 'hash'
if is_record then
    local holder = redis.call('HGET', KEYS[2], 'lease_token')
    if holder and holder ~= ARGV[4] and ARGV[5] == '' then
        if ARGV[4] ~= '' or tonumber(redis.call('HGET', KEYS[2], 'lease_until')) > tonumber(now) then
            return 0
        end
    end
end
redis.call('SETEX', KEYS[1], ARGV[2], ARGV[1])
if ARGV[3] ~= '' then
    if is_record then
        redis.call('HSET', KEYS[2], 'ended_at', now)
        redis.call('HDEL', KEYS[2], 'lease_token', 'lease_until', 'leased_at')
        redis.call('EXPIRE', KEYS[2], ARGV[3])
    end
    redis.call('DEL', KEYS[3])
end
redis.call('PUBLISH', KEYS[1], ARGV[1])
return 1
"""

# KEYS: record. ARGV: token, seconds of the lease, seconds that the record lives. A record that Redis lost is
# made again: nobody else holds the lease then.
_RENEW: Final = """
local holder = redis.call('HGET', KEYS[1], 'lease_token')
if (holder and holder ~= ARGV[1]) or redis.call('HEXISTS', KEYS[1], 'ended_at') == 1 then
    return 0
end
local moment = redis.call('TIME')
local now = string.format('%d.%06d', moment[1], moment[2])
local since = now - (redis.call('HGET', KEYS[1], 'leased_at') or now)
redis.call('HINCRBYFLOAT', KEYS[1], 'leased_s', string.format('%.6f', math.max(0, since)))
local ends_at = string.format('%.6f', now + ARGV[2])
redis.call('HSET', KEYS[1], 'lease_token', ARGV[1], 'lease_until', ends_at, 'leased_at', now)
redis.call('EXPIRE', KEYS[1], ARGV[3])
return 1
"""

# KEYS: record. ARGV: token.
_RELEASE: Final = """
if redis.call('HGET', KEYS[1], 'lease_token') == ARGV[1] then
    redis.call('HDEL', KEYS[1], 'lease_token', 'lease_until', 'leased_at')
end
"""


@dataclass(frozen=True)
class Receipt:
    """What is known of a job as a worker begins it; moments are of Redis's clock, Unix time in seconds.

    Attributes:
        held_s: what is left of another's lease, who works on the job; 0 where it may be begun.
        leased_s: how long it was worked on under leases before.
    """

    now: float
    received_at: float
    is_cancelled: bool
    held_s: float = 0.0
    leased_s: float = 0.0

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
        self._run_renew = redis.register_script(_RENEW)
        self._run_release = redis.register_script(_RELEASE)

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
        now, received_at, is_cancelled, held_s, leased_s = answer
        return Receipt(float(now), float(received_at), bool(is_cancelled), float(held_s), float(leased_s))

    def renew_lease(self, job_id: str, token: str, lease_s: float) -> bool:
        """The lease lives so long from now; False where another holds it, or the job has its outcome."""
        return bool(self._run_renew(keys=[job_key(job_id)], args=[token, lease_s, MAX_WAIT_S]))

    def release_lease(self, job_id: str, token: str) -> None:
        """Whoever takes the job next need not wait. Of another's lease nothing changes."""
        self._run_release(keys=[job_key(job_id)], args=[token])

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
        return bool(
            self._run_store(
                keys=[result_key, job_key(job_id), cancel_key(job_id)],
                args=[
                    state,
                    self._result_ttl_s,
                    self._ttl_s if is_outcome else "",
                    lease_token,
                    "over" if over_lease else "",
                ],
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

    def is_leased(self, job_id: str) -> bool:
        """Whether a worker has it, or had it when it vanished."""
        return bool(self._redis.hexists(job_key(job_id), "lease_token"))

    def has_ended(self, job_id: str) -> bool:
        """Whether the job came to its outcome."""
        return bool(self._redis.hexists(job_key(job_id), ENDED_AT))

    def request_cancel(self, job_id: str) -> None:
        """Ask for a job to be cancelled, wherever it is: it may wait, or run, for days."""
        self._redis.set(cancel_key(job_id), "1", ex=self._ttl_s if self.has_ended(job_id) else MAX_WAIT_S)

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
