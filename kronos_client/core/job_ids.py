"""checked_job_id: the id of a job that is submitted, the caller's or a new one."""

import uuid

from kronos_client.contract.errors import ErrorCode, JobError


def checked_job_id(job_id: str | None) -> str:
    """The one that was given, else a new one; raises JobError BAD_VALUE where Redis cannot have it."""
    if job_id is None:
        return str(uuid.uuid4())
    text = str(job_id)
    if not text:
        raise JobError(ErrorCode.BAD_VALUE, "job_id is empty; leave it out to have one made", "job_id")
    try:
        text.encode()
    except UnicodeEncodeError:  # such as a file's name that is not UTF-8
        raise JobError(ErrorCode.BAD_VALUE, "job_id must be valid Unicode", "job_id") from None
    return text
