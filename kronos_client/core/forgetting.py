"""Deleting a result that was read, without forgetting that the job had its outcome.

The result makes room for a short error that says so. As an outcome it keeps the job, delivered or submitted
once more under its id, from being computed again; it expires when the result would have.
"""

from typing import Any, Final

from celery import states
from celery.result import AsyncResult
from pydantic_core import to_json

from kronos_client.contract.errors import ErrorCode, JobError

FORGOTTEN: Final = JobError(
    ErrorCode.RESULT_EXPIRED,
    "the job was done, and its result was deleted when it was read, as asked; submit it under another job_id",
)


def forget(result: "AsyncResult[Any]") -> bool:
    """Delete a job's result from Celery's Redis backend; False where there is none.

    A job that has not ended goes on, and one that failed keeps its error, which takes no more room.
    """
    if result.status != states.SUCCESS:
        return False
    backend: Any = result.backend
    error = backend.encode_result(FORGOTTEN, states.FAILURE)
    notice: dict[str, Any] = {"status": states.FAILURE, "result": error, "traceback": None, "children": []}
    notice |= {"date_done": result.date_done, "task_id": result.id}
    # The first outcome stands: what was a result then is one now, or has expired (XX).
    key = backend.get_key_for_task(result.id)
    return bool(backend.client.set(key, to_json(notice), xx=True, keepttl=True))
