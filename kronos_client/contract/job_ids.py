"""Ids of jobs: one rule for clients and workers.

Clients refuse other ids. A worker answers BAD_MESSAGE under them, where Redis can have such a key.
"""

import uuid
from typing import Final, TypeGuard

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import MAX_ID_CHARS

SHARED_PREFIX: Final = "equal-"
"""Start of the ids that a client makes from a job's content, so that equal jobs have one."""


def is_shared(job_id: str) -> bool:
    """Whether several senders may have sent the job: none of them may cancel it or delete its result."""
    return job_id.startswith(SHARED_PREFIX)


def is_job_id(value: object) -> TypeGuard[str]:
    """Whether a value may be a job's id: a text that fits into a key of Redis and a line of a log."""
    return isinstance(value, str) and 0 < len(value) <= MAX_ID_CHARS and value.isprintable()


def can_be_answered(value: object) -> TypeGuard[str]:
    """Whether an error can be stored under this id, whether or not it is a job's."""
    try:
        return isinstance(value, str) and len(value.encode()) > 0
    except UnicodeEncodeError:  # half of a character
        return False


def checked_job_id(job_id: object = None) -> str:
    """The id as text, or a new one for None.

    Raises:
        JobError: BAD_VALUE for a text that no worker accepts as an id.
    """
    if job_id is None:
        return str(uuid.uuid4())
    text = str(job_id)
    if not is_job_id(text):
        message = f"job_id must be 1 to {MAX_ID_CHARS} printable characters; leave it out to get a new one"
        raise JobError(ErrorCode.BAD_VALUE, message, "job_id")
    return text
