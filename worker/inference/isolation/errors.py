"""The errors of jobs whose isolated process ended."""

from typing import Final

from kronos_client.contract.errors import ErrorCode, JobError

KILLED: Final = -9


def killed_from_outside() -> JobError:
    """The error for a SIGKILL that neither the job nor a lack of memory can cause."""
    text = (
        "each isolated process that computed the job was killed from outside (SIGKILL): find what killed it, "
        "then submit the job again under a new id"
    )
    return JobError(ErrorCode.WORKER_LOST, text, None, {"exit_status": KILLED})


def ended_loading(exit_status: int) -> JobError:
    """The error for a child that ended while it loaded its models."""
    ended, loading = "the isolated process for this job", "while it loaded its models"
    if exit_status == KILLED:
        remedy = "most likely for lack of memory: give the worker more memory"
        return JobError(ErrorCode.OUT_OF_MEMORY, f"{ended} was killed {loading}, {remedy}")
    text = f"{ended} ended with status {exit_status} {loading}; see the worker's log"
    return JobError(ErrorCode.INTERNAL, text)


def worker_lost(exit_status: int) -> JobError:
    """The error of a job whose process died each time, although it computed only this job."""
    how = f"signal {-exit_status}" if exit_status < 0 else f"status {exit_status}"
    text = (
        f"each process that computed the job died, the last one by {how}: report it with the job's id, or "
        "ask for fewer paths if memory may be short"
    )
    return JobError(ErrorCode.WORKER_LOST, text, None, {"exit_status": exit_status})
