"""The newest jobs of a kind, by the index in which admission notes them."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from redis import Redis
from redis.client import NEVER_DECODE

from kronos_client.contract.names import Kind, job_key, jobs_key, result_key
from kronos_client.core.stored import NOTHING, Stored, read_stored

MAX_STATE_BYTES: Final = 8192
"""A stored state is read up to here: enough for an error, and for the status before a long result."""


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
